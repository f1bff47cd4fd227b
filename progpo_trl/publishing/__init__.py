"""Publishing a trained agent: its model card, the folder that is uploaded, the upload (`progpo publish`)."""
