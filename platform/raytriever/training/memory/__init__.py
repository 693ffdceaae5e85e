"""GPU memory planner: the bytes that training needs, from `config.json` and the settings, before anything starts."""
