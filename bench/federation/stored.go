package federation

import (
	"context"
	"fmt"

	"github.com/nusa-scheduler/nusa/bench/load"
	"github.com/nusa-scheduler/nusa/bench/report"
)

// fillStreams is the number of streams that submit the jobs of Options.Stored.
const fillStreams = 8

// Stored holds the figures of the same load once many jobs are stored and run.
type Stored struct {
	Jobs int `json:"jobs"`
	// Memory is the server's memory once these jobs run.
	Memory
	DecidedPerS       float64 `json:"decided_per_s"`
	SubmitToOfferedMS Pair    `json:"submit_to_offered_ms"`
	SubmitToRunningMS Pair    `json:"submit_to_running_ms"`
	ServerCPUUSPerJob float64 `json:"server_cpu_us_per_job"`
	// Ratios has the figures divided by those of the first load, by the names of LoadFigures.
	Ratios map[string]float64 `json:"ratios"`
}

// measureStored stores Options.Stored jobs and repeats the measurement with other jobs.
func measureStored(ctx context.Context, m *measurement) error {
	if m.o.Stored == 0 {
		return nil
	}
	within, cancel := report.Within(ctx, m.o.Timeout, fmt.Errorf("not all stored within --timeout %s", m.o.Timeout))
	defer cancel()
	m.o.progress("storing %d jobs", m.o.Stored)
	if err := m.submit(within, m.load.With(load.Options{Stream: true, Concurrency: fillStreams}), m.fill, nil); err != nil {
		return fmt.Errorf("store jobs: %w", err)
	}
	memory, err := m.memory()
	if err != nil {
		return err
	}
	again := &Result{}
	if err := m.measureProfiled(ctx, true, m.again, again); err != nil {
		return fmt.Errorf("with %d jobs stored: %w", m.o.Stored, err)
	}
	m.r.Stored = &Stored{
		Jobs: m.o.Stored, Memory: *memory, DecidedPerS: again.DecidedPerS, SubmitToOfferedMS: again.SubmitToOfferedMS,
		SubmitToRunningMS: again.SubmitToRunningMS, ServerCPUUSPerJob: *again.ServerCPUUSPerJob, Ratios: ratiosOf(again, m.r),
	}
	return nil
}

// rows adds the rows of the table, with the ratios of the bare parts where they were measured. A nil
// Stored has no rows.
func (s *Stored) rows(row func(name, format string, args ...any), parts *Result) {
	if s == nil {
		return
	}
	row("with jobs stored", "%d; %s", s.Jobs, s.Memory)
	ofBefore := func(figure string) string {
		text := fmt.Sprintf("%.2f of before", s.Ratios[figure])
		if parts != nil && parts.Stored != nil {
			text += fmt.Sprintf("; the bare parts %.2f", parts.Stored.Ratios[figure])
		}
		return text
	}
	row("  slots decided", "%.0f /s, %s", s.DecidedPerS, ofBefore("decided_per_s"))
	row("  submit to offered", "%s", s.SubmitToOfferedMS)
	row("  submit to running", "%s", s.SubmitToRunningMS)
	row("  server CPU", "%s µs a job, %s", amount(s.ServerCPUUSPerJob), ofBefore("server_cpu_us_per_job"))
}
