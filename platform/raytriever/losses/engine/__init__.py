"""Earlier home of `losses.rows`, from which losses in users' files import."""
