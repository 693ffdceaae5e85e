"""Study of selective retrieval: does one threshold serve all queries, and when is it better to show nothing?"""
