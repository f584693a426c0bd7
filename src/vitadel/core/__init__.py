"""What every package may use: errors, random streams, statistics, files, devices."""
