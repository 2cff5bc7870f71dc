package workflows

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/job"
)

// marks has when the steps of the runs were offered to a region, and when a region said that they had ended.
// Step number i depends on step number i-width.
type marks struct {
	mu           sync.Mutex
	steps, width int
	runs         map[string]*runMarks
	latencies    []time.Duration
	offered      int
	ended        chan string // the names of runs whose steps have all been offered and ended
}

type runMarks struct {
	// ended is when a region said for the last time that the step had ended; zero: it did not.
	ended   []time.Time
	offered []bool
	open    int // steps that have not ended
}

func newMarks(steps, width, runs int) *marks {
	return &marks{steps: steps, width: width, runs: map[string]*runMarks{}, ended: make(chan string, runs)}
}

// stepOf returns the run and the number of the step of a job.
func stepOf(name string) (run string, step int, ok bool) {
	run, rest, ok := strings.Cut(name, job.StepMark+"s")
	if !ok {
		return "", 0, false
	}
	step, err := strconv.Atoi(rest)
	return run, step, err == nil
}

// run returns the marks of a run. The lock is held.
func (m *marks) run(name string) *runMarks {
	r := m.runs[name]
	if r == nil {
		r = &runMarks{ended: make([]time.Time, m.steps), offered: make([]bool, m.steps), open: m.steps}
		m.runs[name] = r
	}
	return r
}

// note calls f with the marks of the run and the number of the step of a job, if it is one. The lock is held in f.
func (m *marks) note(name string, f func(r *runMarks, run string, i int)) {
	run, i, ok := stepOf(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if ok && i < m.steps {
		f(m.run(run), run, i)
	}
}

// noteOffered notes that a region was offered a step.
func (m *marks) noteOffered(name string, at time.Time) {
	m.note(name, func(r *runMarks, _ string, i int) {
		if r.offered[i] {
			return
		}
		r.offered[i] = true
		m.offered++
		if before := i - m.width; before >= 0 && !r.ended[before].IsZero() {
			m.latencies = append(m.latencies, at.Sub(r.ended[before]))
		}
	})
}

// noteEnded notes that a region said that a step had ended. Of several such messages the last one before the
// offer of the next step counts.
func (m *marks) noteEnded(name string, at time.Time) {
	m.note(name, func(r *runMarks, run string, i int) {
		first := r.ended[i].IsZero()
		r.ended[i] = at
		if !first {
			return
		}
		if r.open--; r.open == 0 {
			m.ended <- run
		}
	})
}
