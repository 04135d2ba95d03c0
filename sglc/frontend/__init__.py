"""What a user's program touches while it is recorded: functions, prompt states, expressions."""
