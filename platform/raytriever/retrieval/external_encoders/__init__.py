"""External encoders: functions, and services with OpenAI's API, whose embeddings are paid for only once."""
