package link

// Remembered returns how many changes the outbox holds in memory.
func Remembered[V any](o *Outbox[V]) int { return len(o.log) + len(o.state) - o.live }
