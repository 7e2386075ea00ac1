"""What reads bytes that anybody may have written, fed with what nobody would write."""
