package plan

import (
	"hash/fnv"
	"strconv"
	"time"
)

// Trigger says why a run begins.
type Trigger int

// The triggers.
const (
	BySchedule Trigger = iota
	Manual
	Backfill
)

// Name returns the name of a run. It has a dot, which no name in a job file has. taken reports whether
// a name is in use. The same time of a schedule always has the same name, so that no transaction can
// begin it twice.
func Name(job string, at time.Time, trigger Trigger, taken func(string) bool) string {
	name := job + "." + at.UTC().Format("20060102-150405")
	switch trigger {
	case BySchedule:
		return name
	case Manual:
		name += "-t"
	case Backfill:
		name += "-b"
	}
	for n := 2; taken(name) && n < 1000; n++ {
		base := name
		if n > 2 {
			base = name[:len(name)-len(strconv.Itoa(n-1))]
		}
		name = base + strconv.Itoa(n)
	}
	return name
}

// due returns when the run of a time begins at the earliest. It depends only on the job and the time.
func (r *Rule) due(t time.Time) time.Time {
	seconds := int64(r.Jitter / time.Second)
	if seconds <= 0 {
		return t
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(r.Job + "@" + strconv.FormatInt(t.Unix(), 10)))
	return t.Add(time.Duration(h.Sum64()%uint64(seconds)) * time.Second)
}
