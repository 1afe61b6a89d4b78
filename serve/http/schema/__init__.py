"""What a request body may hold. Shapes and types only; ranges are checked where the values are used."""
