"""The only package that imports Ray: thin adapters from the packages below to a cluster."""
