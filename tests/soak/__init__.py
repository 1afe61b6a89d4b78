"""`python -m tests.soak`: many clients, good and bad ones, against one real server that is killed and started again."""
