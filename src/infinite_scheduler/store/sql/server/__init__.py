"""Database servers as homes of the SQL store."""
