"""raytriever: train and measure dense retrievers on Ray.

The packages follow the route of the data (docs/explanation/architecture.md). Nothing heavy is imported here, so that
`--help` answers at once.
"""

__version__ = "0.1.0"
