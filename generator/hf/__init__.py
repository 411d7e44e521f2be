"""From a published config.json to a spec. Knows nothing of the IR, templates and output."""

from lingen.hf.importer import (
    Imported,
    import_config,
    import_config_data,
    import_to_file,
    name_from,
)

__all__ = ["Imported", "import_config", "import_config_data", "import_to_file", "name_from"]
