from tests.soak.run import main

raise SystemExit(main())
