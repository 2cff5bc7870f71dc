package federation

import (
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/bench/load"
	"github.com/nusa-scheduler/nusa/bench/report"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// table records for each job of a set when it was sent, stored, offered to regions,
// accepted by them, and seen running. A table is safe for concurrent use.
type table struct {
	*jobSet
	jobs, slots int
	begin       time.Time
	// offered is closed when every slot is offered, accepted when every slot is accepted.
	offered, accepted chan struct{}

	mu   sync.Mutex
	rows []jobTimes
	// offeredSum and acceptedSum count slots. offeredAt and acceptedAt are the times at
	// which the counts grew last.
	offeredSum, acceptedSum int
	offeredAt, acceptedAt   time.Duration
}

// jobTimes holds the times of one job, since the begin of the table; 0 = not yet.
type jobTimes struct {
	sent, answered, offered, running time.Duration
	// offers and accepts have one bit for each instance. In offers the bit is set when a
	// region has received the instance, in accepts when its acceptance is stored.
	offers, accepts uint8
}

func newTable(s *jobSet, jobs int) *table {
	b := &table{
		jobSet: s, jobs: jobs, begin: time.Now(), rows: make([]jobTimes, jobs),
		offered: make(chan struct{}), accepted: make(chan struct{}),
	}
	for i := range jobs {
		b.slots += s.count(i)
	}
	return b
}

// toSubmit returns the jobs in the form that package load submits. answered, if not nil,
// is called for each job when the job is stored.
func (b *table) toSubmit(answered func(i int)) load.Jobs {
	return load.Jobs{Number: b.jobs, Spec: b.spec, Sent: b.noteSent, Answered: func(i int) {
		b.noteAnswered(i)
		if answered != nil {
			answered(i)
		}
	}}
}

// noteSent records when a job was sent. With a fixed rate it records when the job was due.
func (b *table) noteSent(i int, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows[i].sent = max(1, at.Sub(b.begin))
}

func (b *table) noteAnswered(i int) {
	now := time.Since(b.begin)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows[i].answered = now
}

func (b *table) noteRunning(i int) {
	now := time.Since(b.begin)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows[i].running = now
}

// noteOffered records that a region received a slot. Slots of other sets are ignored.
func (b *table) noteOffered(s *nusav1.Slot, at time.Time) {
	i, ours := b.index(s.GetJob())
	if !ours || i >= b.jobs {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	row, bits := &b.rows[i], bitsOf(s)
	added := count(bits &^ row.offers)
	if added == 0 {
		return
	}
	row.offers |= bits
	b.offeredSum, b.offeredAt = b.offeredSum+added, at.Sub(b.begin)
	if count(row.offers) == b.count(i) {
		row.offered = b.offeredAt
	}
	if b.offeredSum == b.slots {
		close(b.offered)
	}
}

// noteAccepted records that the acceptance of a slot is stored.
func (b *table) noteAccepted(s *nusav1.Slot, at time.Time) {
	i, ours := b.index(s.GetJob())
	if !ours || i >= b.jobs {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	row, bits := &b.rows[i], bitsOf(s)
	added := count(bits &^ row.accepts)
	if added == 0 {
		return
	}
	row.accepts |= bits
	b.acceptedSum, b.acceptedAt = b.acceptedSum+added, at.Sub(b.begin)
	if b.acceptedSum == b.slots {
		close(b.accepted)
	}
}

// bitsOf returns a bit for each instance of a slot.
func bitsOf(s *nusav1.Slot) uint8 {
	var out uint8
	for i := max(0, s.GetFrom()); i < min(8, s.GetTo()); i++ {
		out |= 1 << i
	}
	return out
}

func count(bits uint8) int {
	n := 0
	for ; bits > 0; bits &= bits - 1 {
		n++
	}
	return n
}

// sums returns how many slots were offered and accepted so far.
func (b *table) sums() (offered, accepted int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.offeredSum, b.acceptedSum
}

// sentJobs returns the numbers of the jobs that were submitted.
func (b *table) sentJobs() (out []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.rows {
		if b.rows[i].sent > 0 {
			out = append(out, i)
		}
	}
	return out
}

// fill copies the recorded times into the result.
func (b *table) fill(r *Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var offered, running, answered []time.Duration
	first := time.Duration(0)
	for i := range b.rows {
		row := &b.rows[i]
		if row.sent > 0 && (first == 0 || row.sent < first) {
			first = row.sent
		}
		for _, t := range []struct {
			at  time.Duration
			out *[]time.Duration
		}{{row.offered, &offered}, {row.running, &running}, {row.answered, &answered}} {
			if t.at > 0 {
				*t.out = append(*t.out, t.at-row.sent)
			}
		}
	}
	r.SubmitToOfferedMS, r.SubmitToRunningMS, r.SubmitMS = pairOf(offered), pairOf(running), pairOf(answered)
	r.Slots, r.Decided, r.Accepted, r.Watched = b.slots, b.offeredSum, b.acceptedSum, len(running)
	if b.offeredSum > 0 {
		r.Seconds = report.Seconds(b.offeredAt - first)
		r.DecidedPerS = report.PerSecond(b.offeredSum, b.offeredAt-first)
	}
	if b.acceptedSum > 0 {
		r.AcceptedPerS = report.PerSecond(b.acceptedSum, b.acceptedAt-first)
	}
}

func pairOf(all []time.Duration) Pair {
	q := report.QuantilesOf(all)
	return Pair{P50: q.P50, P99: q.P99}
}

// offeredTime returns the time at which a region last received a slot of the table.
func (b *table) offeredTime() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.begin.Add(b.offeredAt)
}
