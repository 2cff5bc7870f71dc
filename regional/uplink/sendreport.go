package uplink

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/sched"
)

// reportShare bounds the time that the master spends on urgent reports to a tenth.
const reportShare = 10

// sendReport sends a report each interval, and at once after an urgent change.
func (ss *session) sendReport(now time.Time) (time.Time, error) {
	due := ss.reportAt.Add(ss.reportInterval)
	soon := ss.reportAt.Add(max(coalesce, reportShare*ss.reportTook))
	ss.mu.Lock()
	urgent, maybeUrgent := ss.reportNow, ss.urgentDirty
	ss.mu.Unlock()
	if now.Before(due) {
		if !urgent && maybeUrgent {
			if check := ss.urgentAt.Add(coalesce / 2); now.Before(check) {
				if check.Before(due) {
					return check, nil
				}
				return due, nil
			}
			ss.urgentAt = now
			ss.clear(&ss.urgentDirty)
			urgent = ss.isUrgent()
			if urgent {
				ss.mu.Lock()
				ss.reportNow = true
				ss.mu.Unlock()
			}
		}
		if !urgent {
			return due, nil
		}
		if now.Before(soon) {
			return soon, nil
		}
	}
	ss.clear(&ss.reportNow)
	ss.clear(&ss.urgentDirty)
	began := time.Now()
	r := ss.u.cfg.Reporter.Report(ss.u.subscribed())
	ss.reportTook = time.Since(began)
	r.Sequence = ss.lastReport.GetSequence() + 1
	ss.lastReport, ss.reportAt = r, now
	if err := ss.sendForms(); err != nil { // first, so that the server knows them when it learns of the driver
		return time.Time{}, err
	}
	return now.Add(ss.reportInterval), ss.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Report{Report: r}})
}

// isUrgent compares the state with the last report. A change is urgent when the number of
// nodes with some status changes, or when resources are released while an ask fits nowhere.
// The placer must know such a change at once.
func (ss *session) isUrgent() bool {
	t := sched.Sum(ss.u.cfg.FSM.View())
	last := ss.lastReport
	if t.Ready != last.GetNodesReady() || t.Lost != last.GetNodesLost() || t.Left != last.GetNodesLeft() ||
		t.Draining != last.GetNodesDraining() || t.Cordoned != last.GetNodesCordoned() {
		return true
	}
	full := slices.ContainsFunc(last.GetShape().GetFits(), func(f *nusav1.FitCount) bool { return f.GetCount() == 0 })
	free := last.GetFree()
	released := t.Free.CPUMilli > free.GetCpuMilli() || t.Free.MemoryBytes > free.GetMemoryBytes() || t.Free.DiskBytes > free.GetDiskBytes()
	return full && released
}

// sendFits sends the fit counts of asks that were just subscribed, unless a report with all
// fit counts is due now.
func (ss *session) sendFits(time.Time) (time.Time, error) {
	ss.mu.Lock()
	asks, report := ss.newAsks, ss.reportNow
	ss.newAsks = nil
	ss.mu.Unlock()
	if len(asks) == 0 || report || ss.lastReport == nil {
		return time.Time{}, nil
	}
	out := &nusav1.FitCounts{Fits: ss.u.cfg.Reporter.Fits(asks)}
	if shape := ss.lastReport.GetShape(); shape != nil {
		shape.Fits = append(shape.Fits, out.GetFits()...) // for isUrgent
	}
	return time.Time{}, ss.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Fits{Fits: out}})
}

// sendForms sends the forms of the config of plugins if the server accepts them and has others.
func (ss *session) sendForms() error {
	if ss.formsOf == nil {
		return nil
	}
	forms := ss.formsOf.read(ss.u.cfg.FSM.View())
	hash := job.FormsHash(forms)
	if hash == ss.formsSent {
		return nil
	}
	ss.formsSent = hash
	return ss.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Forms{Forms: forms}})
}
