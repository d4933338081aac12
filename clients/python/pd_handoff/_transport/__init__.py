"""What carries calls to a store: channels, single calls and Sessions. Private."""
