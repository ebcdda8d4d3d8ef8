"""The SQL store on database servers."""
