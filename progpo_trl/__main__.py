"""`python -m progpo_trl` is `progpo`."""

from progpo_trl.cli import main

raise SystemExit(main())
