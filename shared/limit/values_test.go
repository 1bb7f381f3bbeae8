package limit

// Variants of Window's methods that return a new Usage instead of changing one.

func rolled(w Window, u Usage, last, now int64) Usage {
	w.Roll(&u, last, now)
	return u
}

func added(w Window, u Usage, now int64, cost uint32) Usage {
	w.Add(&u, now, cost)
	return u
}

func refunded(w Window, u, after Usage, at, now int64, cost uint32, opened bool) (Usage, bool) {
	taken := w.Refund(&u, &after, at, now, cost, opened)
	return u, taken
}

func shifted(w Window, u Usage, delta int64) Usage {
	w.Shift(&u, delta)
	return u
}
