"""From images on disk to augmented batches on the device."""
