"""The model: trained here, exported, and served. torch and pyarrow are imported by what needs them, when it runs."""
