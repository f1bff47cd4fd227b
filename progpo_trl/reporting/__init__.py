"""What a run tells people: metrics and episodes as it goes, plots and a summary at its end."""
