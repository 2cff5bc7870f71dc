package deadletters

import (
	"context"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// rerun is an open dead letter whose instance runs again in another job.
type rerun struct {
	id, as string
}

// reruns returns some of the open dead letters of steps of workflows that have a later attempt, because an operator has
// retried the workflow. It returns none while the store is full: the store takes only deletions then, such as those of
// tidy, and any other write ends the term.
func reruns(b *Book) (out []rerun) {
	b.st.Lock()
	defer b.st.Unlock()
	runAgain := b.st.Letters.RunAgain
	if runAgain == nil || b.open == 0 || b.st.Room.Usage().NoSpace {
		return nil
	}
	known := map[state.JobKey]string{} // an array may have left many
	for _, e := range b.order {
		if e.rec.GetState() != nusav1.DeadLetterState_DEAD_LETTER_STATE_OPEN || !job.OfStep(e.rec.GetJob()) {
			continue
		}
		k := jobOf(e.rec)
		as, asked := known[k]
		if !asked {
			if next, is := runAgain(k); is {
				as = next.Name
			}
			known[k] = as
		}
		if as == "" {
			continue
		}
		out = append(out, rerun{e.rec.GetId(), as})
		if len(out) == together {
			break
		}
	}
	return out
}

// noteAgain stores for each open dead letter of a step which later attempt runs it again. If that fails, too, it leaves
// a dead letter of its own.
func noteAgain(ctx context.Context, b *Book) error {
	for {
		all := reruns(b)
		if len(all) == 0 {
			return nil
		}
		err := change(ctx, b, func(t *state.Tx) error {
			for _, r := range all {
				if err := noteRerun(t, b, r); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
}

// noteRerun adds to a transaction that an instance runs again. The lock is held.
func noteRerun(t *state.Tx, b *Book, r rerun) error {
	now := b.present(t, r.id)
	if now.GetState() != nusav1.DeadLetterState_DEAD_LETTER_STATE_OPEN {
		return nil // it was redriven or dropped meanwhile
	}
	out := proto.CloneOf(now)
	out.State, out.RedrivenAs, out.Redriven = nusav1.DeadLetterState_DEAD_LETTER_STATE_REDRIVEN, r.as, timestamppb.Now()
	t.EventAt(out.GetRegion(), "deadletter.redriven", jobOf(out).String(), "%s[%d] as job %s, a later attempt of the step: %s",
		out.GetGroup(), out.GetIndex(), r.as, r.id)
	return state.PutOther(t, letterKey(r.id), &nusav1.DeadLetterRecord{DeadLetter: out})
}
