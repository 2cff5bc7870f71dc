package emulate

import (
	"context"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The intervals of a region's messages are the same as in package regional/uplink, except
// coalesce.
const (
	// coalesce is the interval between two messages with answers, and between two with
	// summaries, when many are due. burst is how many such messages are sent without a
	// pause after a quiet time. A busy region sends later than after coalesce, which does
	// no harm because the work of the region is not measured.
	coalesce = 10 * time.Millisecond
	burst    = 5
	// ackWait is how long an acknowledgement of orders waits for another message.
	ackWait = 200 * time.Millisecond
	// repeatAnswers is the interval at which the region repeats an answer until the
	// orders of the global tier show the answer.
	repeatAnswers = 5 * time.Second
	// reportEvery is the interval of reports, unless the welcome has a shorter one.
	// reportPause is the shortest pause between two reports.
	reportEvery = 5 * time.Second
	reportPause = 100 * time.Millisecond
	// rowEvery is the interval at which new edges are sent. confirmRow is the interval at
	// which sent edges are confirmed. wholeRow is the interval at which all edges are sent
	// again.
	rowEvery   = 5 * time.Second
	confirmRow = 30 * time.Second
	wholeRow   = 10 * time.Minute
	// Bounds of one message.
	maxAnswers       = 256
	maxSummaries     = 512
	leastLeasePause  = 50 * time.Millisecond
	longestLeaseWait = 2 * time.Second
)

// sender sends the messages of one session.
type sender struct {
	r      *region
	stream globalStream
	cursor *link.Cursor[*nusav1.JobSummary]

	leaseEvery, reportEvery                            time.Duration
	leaseAt, answersAt, reportAt, soonestReport, rowAt time.Time // when each is due
	answerPace, summaryPace                            *wait.Pace
	// sent: a message was sent since the sender woke. acked: orders were acknowledged. ackAt is
	// when the present acknowledgement is sent even without another message; zero: not set.
	sent, acked bool
	ackAt       time.Time
	// delayed holds the reports that were made but not sent yet, oldest first.
	delayed []delayedReport
	// summarised is the sequence up to which all summaries are sent.
	summarised uint64
}

func newSender(r *region, stream globalStream, w *nusav1.GlobalWelcome, cursor *link.Cursor[*nusav1.JobSummary]) *sender {
	now := time.Now()
	s := &sender{
		r: r, stream: stream, cursor: cursor,
		leaseEvery: longestLeaseWait, reportEvery: reportEvery,
		leaseAt: now, reportAt: now, rowAt: now, answersAt: now.Add(repeatAnswers),
		answerPace: wait.NewPace(coalesce, burst), summaryPace: wait.NewPace(coalesce, burst),
	}
	if lease := w.GetLease().AsDuration(); lease > 0 {
		s.leaseEvery = min(max(lease/3, leastLeasePause), longestLeaseWait)
	}
	if every := w.GetReportInterval().AsDuration(); every > 0 {
		s.reportEvery = min(every, reportEvery)
	}
	return s
}

// run sends each message when it is due, until ctx ends, a send fails, or the region
// leaves.
func (s *sender) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.r.wake:
		case <-timer.C:
		}
		if s.r.f.isLeaving() {
			_ = s.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Goodbye{Goodbye: &nusav1.Goodbye{Message: "the measurement has ended"}}})
			return s.stream.CloseSend()
		}
		s.sent = false
		next := time.Now().Add(time.Hour)
		for _, step := range []func(time.Time) (time.Time, error){s.lease, s.answers, s.summaries, s.report, s.lateReports, s.fits, s.row, s.ack} {
			due, err := step(time.Now())
			if err != nil {
				return err
			}
			if !due.IsZero() && due.Before(next) {
				next = due
			}
		}
		timer.Reset(time.Until(next))
	}
}

func (s *sender) send(m *nusav1.RegionMessage) error {
	s.sent = true
	return s.stream.Send(m)
}

// The functions from here to the end of the file are the steps of run. Each returns the
// time at which its next message is due. The zero time means that the next message is due
// only after a change.

func (s *sender) lease(now time.Time) (time.Time, error) {
	if now.Before(s.leaseAt) {
		return s.leaseAt, nil
	}
	s.leaseAt = now.Add(s.leaseEvery)
	return s.leaseAt, s.askLease()
}

// askLease sends a lease request.
func (s *sender) askLease() error {
	s.r.mu.Lock()
	s.r.leaseID++
	q := &nusav1.LeaseRequest{Id: s.r.leaseID, Granted: s.r.granted}
	s.r.mu.Unlock()
	return s.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Lease{Lease: q}})
}

// ack acknowledges orders that were applied, together with another message or after ackWait.
func (s *sender) ack(now time.Time) (time.Time, error) {
	s.r.mu.Lock()
	due, at, waits := s.r.ackDue, s.r.position, s.r.granted == 0
	switch {
	case !due:
	case s.acked && !s.sent && s.ackAt.IsZero():
		s.ackAt, due = now.Add(ackWait), false
	case s.acked && !s.sent && now.Before(s.ackAt):
		due = false
	default:
		s.r.ackDue, s.ackAt = false, time.Time{}
	}
	s.r.mu.Unlock()
	if !due {
		return s.ackAt, nil
	}
	s.acked = true
	if err := s.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_OrdersAck{OrdersAck: position(at)}}); err != nil || !waits {
		return time.Time{}, err
	}
	return time.Time{}, s.askLease() // no lease is granted before the first acknowledgement
}

func (s *sender) answers(now time.Time) (time.Time, error) {
	repeat := !now.Before(s.answersAt)
	s.r.mu.Lock()
	fresh := len(s.r.fresh) > 0
	s.r.mu.Unlock()
	if !fresh && !repeat {
		return s.answersAt, nil
	}
	if !repeat {
		if due, allowed := s.answerPace.Take(now); !allowed {
			return due, nil
		}
	}
	if repeat {
		s.answersAt = now.Add(repeatAnswers)
	}
	s.r.mu.Lock()
	all := s.r.answers(repeat)
	s.r.mu.Unlock()
	for part := range slices.Chunk(all, maxAnswers) {
		for _, a := range part {
			if a.GetState() == nusav1.SlotState_SLOT_STATE_DONE {
				s.r.noteEnded(a.GetNamespace(), a.GetJob())
			}
		}
		if err := s.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Answers{Answers: &nusav1.SlotAnswers{Answers: part}}}); err != nil {
			return time.Time{}, err
		}
	}
	return s.answersAt, nil
}

func (s *sender) summaries(now time.Time) (time.Time, error) {
	s.r.mu.Lock()
	last := s.r.summaries.Position().Sequence
	dirty := s.cursor.Full() || last != s.summarised
	s.r.mu.Unlock()
	if !dirty {
		return time.Time{}, nil
	}
	if due, allowed := s.summaryPace.Take(now); !allowed {
		return due, nil
	}
	for {
		s.r.mu.Lock()
		b, more := s.cursor.Next(maxSummaries)
		s.r.mu.Unlock()
		if !more {
			s.summarised = last
			return time.Time{}, nil
		}
		out := &nusav1.JobSummaries{Full: b.Full, Last: b.Last, Removed: b.Removed, Position: position(b.Position)}
		for _, i := range b.Items {
			out.Summaries = append(out.Summaries, i.Value)
			for _, c := range i.Value.GetGroups() {
				if c.GetComplete() > 0 {
					s.r.noteEnded(i.Value.GetNamespace(), i.Value.GetJob())
				}
			}
		}
		if err := s.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Summaries{Summaries: out}}); err != nil {
			return time.Time{}, err
		}
	}
}

func (s *sender) report(now time.Time) (time.Time, error) {
	s.r.mu.Lock()
	at := s.reportAt
	if s.r.reportDue && s.soonestReport.Before(at) {
		at = s.soonestReport
	}
	if now.Before(at) {
		s.r.mu.Unlock()
		return at, nil
	}
	s.r.reportDue = false
	m := s.r.report()
	s.r.mu.Unlock()
	s.reportAt, s.soonestReport = now.Add(s.reportEvery), now.Add(reportPause)
	if delay := s.r.f.cfg.ReportDelay; delay > 0 {
		s.delayed = append(s.delayed, delayedReport{m, now.Add(delay)})
		return s.reportAt, nil
	}
	return s.reportAt, s.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Report{Report: m}})
}

// delayedReport is a report that waits for Config.ReportDelay.
type delayedReport struct {
	report *nusav1.RegionReport
	due    time.Time
}

// lateReports sends the delayed reports that are due.
func (s *sender) lateReports(now time.Time) (time.Time, error) {
	for len(s.delayed) > 0 {
		first := s.delayed[0]
		if now.Before(first.due) {
			return first.due, nil
		}
		s.delayed = s.delayed[1:]
		if err := s.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Report{Report: first.report}}); err != nil {
			return time.Time{}, err
		}
	}
	return time.Time{}, nil
}

// fits sends the fit counts of asks that are new. A report that is due contains them
// anyway.
func (s *sender) fits(time.Time) (time.Time, error) {
	s.r.mu.Lock()
	asks := s.r.fitsDue
	s.r.fitsDue = nil
	if len(asks) == 0 || s.r.reportDue {
		s.r.mu.Unlock()
		return time.Time{}, nil
	}
	m := &nusav1.FitCounts{Fits: s.r.fitCounts(asks)}
	s.r.mu.Unlock()
	return time.Time{}, s.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Fits{Fits: m}})
}

// row sends the edges that were not sent yet, and confirms the others after confirmRow.
func (s *sender) row(now time.Time) (time.Time, error) {
	s.r.mu.Lock()
	due, awaited := s.r.rowDue || !now.Before(s.rowAt), s.r.rowFrom > 0
	s.r.rowDue = false
	s.r.mu.Unlock()
	if !due {
		return s.rowAt, nil
	}
	s.rowAt = now.Add(rowEvery)
	if m := s.r.sent.changes(s.r, now); m != nil {
		if err := s.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Row{Row: m}}); err != nil {
			return time.Time{}, err
		}
	}
	if !awaited {
		return s.rowAt, nil
	}
	s.r.mu.Lock()
	s.r.rowFrom = s.r.leaseID + 1
	s.r.mu.Unlock()
	return s.rowAt, s.askLease()
}
