package link

// Remembered returns how many keys the outbox has memory for.
func Remembered[V any](o *Outbox[V]) int { return len(o.nodes) }
