package uplink

import (
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// outputOf returns the output that an answer reports: the output of the first instance that has one. Only
// the jobs of steps of workflows have outputs.
func outputOf(view *state.View, a *state.Answer) string {
	if a.State != state.SlotDone || !job.OfStep(a.Job) {
		return ""
	}
	key := state.GroupKey{Namespace: a.Namespace, Job: a.Job, Group: a.Group}
	for index := a.From; index < a.To; index++ {
		out := ""
		for alloc := range view.InstanceAllocs(key, index) { // the newest attempt is the last one
			if alloc.State == state.Complete {
				out = wire.OutputFromStored(alloc.Tasks)
			}
		}
		if out != "" {
			return out
		}
	}
	return ""
}

// messagesOf divides answers among messages of at most maxAnswers answers and about maxBatchBytes of outputs.
func messagesOf(answers []*nusav1.SlotAnswer) (out [][]*nusav1.SlotAnswer) {
	first, bytes := 0, 0
	for i, a := range answers {
		bytes += len(a.GetOutput())
		if i > first && (i-first == maxAnswers || bytes > maxBatchBytes) {
			out, first, bytes = append(out, answers[first:i]), i, len(a.GetOutput())
		}
	}
	if first < len(answers) {
		out = append(out, answers[first:])
	}
	return out
}
