"""The trajectory viewer: `progpo view RUN_DIR`, see docs/viewing.md."""
