package client

import (
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestWaits: what job wait and job stop --wait print, and their exit codes, for the states that a job goes through.
func TestWaits(t *testing.T) {
	stopping := jobIn("halted", 2, nusav1.JobState_JOB_STATE_STOPPING, &nusav1.InstanceCounts{Stopping: 2})
	stopped := jobIn("halted", 2, nusav1.JobState_JOB_STATE_STOPPED, &nusav1.InstanceCounts{Stopped: 2})
	for _, j := range []*nusav1.Job{stopping, stopped} {
		j.Stopped, j.Revision = true, 1000
	}
	running := jobIn("halted", 3, nusav1.JobState_JOB_STATE_RUNNING, &nusav1.InstanceCounts{Running: 2})
	running.Revision = 1001
	starting := jobIn("done", 2, nusav1.JobState_JOB_STATE_STARTING, &nusav1.InstanceCounts{Starting: 2})
	complete := jobIn("done", 2, nusav1.JobState_JOB_STATE_COMPLETE, &nusav1.InstanceCounts{Complete: 2})
	broken := jobIn("back", 2, nusav1.JobState_JOB_STATE_FAILED, &nusav1.InstanceCounts{Running: 2})
	broken.Spec.Groups = map[string]*nusav1.Group{"web": {Update: &nusav1.Update{AutoRevert: true}}}
	taken := jobIn("back", 3, nusav1.JobState_JOB_STATE_STARTING, &nusav1.InstanceCounts{Running: 2})
	taken.Reverted = &nusav1.Reverted{Version: 2, To: 1, Why: "version 2 failed: 1 of 2 instances failed"}
	alone := jobIn("back", 2, nusav1.JobState_JOB_STATE_FAILED, &nusav1.InstanceCounts{Failed: 2})
	purged := rpcerr.NotFound(rpcerr.KindJob, "default/gone", "job default/gone does not exist")
	for name, c := range map[string]struct {
		line   string
		states []*nusav1.Job
		err    error
		want   string
		code   int
	}{
		"stops":           {"job stop halted --wait", []*nusav1.Job{stopping, stopped}, nil, "default/halted has stopped after", 0},
		"is purged":       {"job stop halted --wait --purge", []*nusav1.Job{stopping}, purged, "default/halted has stopped and is deleted after", 0},
		"is stopped":      {"job wait halted --stopped", []*nusav1.Job{stopped}, nil, "default/halted has stopped after", 0},
		"runs again":      {"job wait halted --stopped", []*nusav1.Job{stopping, running}, nil, "default/halted was submitted again", 1},
		"takes long":      {"job wait halted --stopped --timeout 1s", []*nusav1.Job{stopping}, nil, "default/halted: after --timeout 1s it is stopping", 2},
		"completes":       {"job wait done", []*nusav1.Job{starting, complete}, nil, "default/done is complete: 2 instances (japaneast 2)", 0},
		"is taken back":   {"job wait back", []*nusav1.Job{broken, taken}, nil, "default/back: version 2 failed: taken back to version 1, as version 3: 1 of 2 instances failed", 4},
		"fails":           {"job wait back", []*nusav1.Job{alone}, nil, "default/back failed", 3},
		"completes, JSON": {"job wait done -o json", []*nusav1.Job{complete}, nil, `"JOB_STATE_COMPLETE"`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.watch = func(_ *nusav1.GetJobRequest, s grpc.ServerStreamingServer[nusav1.Job]) error {
				for _, j := range c.states {
					if err := s.Send(j); err != nil {
						return err
					}
				}
				if c.err != nil {
					return c.err
				}
				<-s.Context().Done()
				return s.Context().Err()
			}
			out, errOut, code := f.run(t.Context(), "", append(strings.Fields(c.line), "--addr="+f.addr)...)
			if code != c.code || !strings.Contains(out+errOut, c.want) {
				t.Errorf("exit code %d, want %d and %q\n%s%s", code, c.code, c.want, out, errOut)
			}
		})
	}
}
