"""Study of selective retrieval: does training improve the decision to show the best document or nothing?"""
