"""What all tables of the configuration have in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """One table of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True)
