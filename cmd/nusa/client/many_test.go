package client

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// streams says how the fake server serves streams of submits.
type streams struct {
	// unknown: the server has no such call.
	unknown bool
	// before is called before a submit of a stream, with its number in the stream. Its error ends the stream.
	before func(number int) error
	// submit replaces Submit for the calls and the streams, if not nil.
	submit func(stream bool, r *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error)
}

func (f *fake) SubmitMany(s grpc.BidiStreamingServer[nusav1.SubmitRequest, nusav1.SubmitManyResponse]) error {
	if f.many.unknown {
		return f.UnimplementedJobsServer.SubmitMany(s)
	}
	for number := 0; ; number++ {
		r, err := s.Recv()
		if err != nil {
			return nil // the client has sent all, or is gone
		}
		if f.many.before != nil {
			if err := f.many.before(number); err != nil {
				return err
			}
		}
		resp, err := f.submitOne(s.Context(), true, r)
		st := status.Convert(err)
		if err := s.Send(&nusav1.SubmitManyResponse{Response: resp, Code: int32(st.Code()), Error: st.Message(), Problems: rpcerr.Problems(err)}); err != nil {
			return err
		}
	}
}

// folder writes a file with each job.
func folder(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i, name := range names {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%03d.yaml", i)), fmt.Appendf(nil, sample.JobFile, name, "service"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestManyJobs: a refused job is reported with its file, and the others are submitted. A server without streams makes
// no difference.
func TestManyJobs(t *testing.T) {
	all := []string{"a", "refused", "same", "full", "fresh"}
	for _, c := range []struct {
		jobs           []string
		format         string
		out, errors    string
		code           int
		ownRegion      string
		submitsAtLeast int
	}{
		{all, "table",
			"default/a submitted, version 2 (revision 12)\ndefault/same unchanged, version 2 (revision 12)\ndefault/fresh submitted, version 1 (revision 12)\n",
			"nusa: DIR/001.yaml:3:1: groups.g.tasks.t.artifacts: not supported yet by driver process\n" +
				"nusa: DIR/001.yaml: regions.near[0].region: there is no region \"mars\"\n" +
				"nusa: DIR/003.yaml: default/full: the queue of submits is full (1024): try again later\n" +
				"nusa: 2 of 5 jobs were refused: see above; the rest was submitted, and continues\n", cli.ExitFail, "", 5},
		{all[1:3], "name", "default/same\n", "nusa: DIR/000.yaml:3:1: groups.g.tasks.t.artifacts: not supported yet by driver process\n" +
			"nusa: DIR/000.yaml: regions.near[0].region: there is no region \"mars\"\n" +
			"nusa: 1 of 2 jobs was refused: see above; the rest was submitted, and continues\n", cli.ExitFail, "", 2},
		{[]string{"fresh", "same"}, "json", "{\n  \"version\": \"1\",\n  \"revision\": \"12\",\n  \"changed\": true\n}\n{\n  \"version\": \"2\",\n  \"revision\": \"12\"\n}\n", "", cli.ExitDone, "", 2},
		{[]string{"full", "stale"}, "table", "", "nusa: DIR/000.yaml: default/full: the queue of submits is full (1024): try again later\n" +
			"nusa: DIR/001.yaml: default/stale: check_revision is 3 and the job's revision is 9: look at the present state and repeat\n" +
			"nusa: all 2 jobs were refused: see above\n", cli.ExitFail, "", 2},
		{[]string{"a", "b"}, "name", "default/a@eastus\ndefault/b@eastus\n", "", cli.ExitDone, "eastus", 2},
		{[]string{"quorum", "a"}, "table", "", "nusa: etcd has no quorum: 1 of 3 members answer: try again in a few seconds\n", cli.ExitFail, "", 1},
		{[]string{"a", "quorum"}, "table", "default/a submitted, version 2 (revision 12)\n", "nusa: 1 of 2 jobs was submitted, and continue\n" +
			"nusa: etcd has no quorum: 1 of 3 members answer: try again in a few seconds\n", cli.ExitFail, "", 2},
	} {
		for _, unknown := range []bool{false, true} {
			f := newFake(t)
			f.many.unknown, f.island = unknown, c.ownRegion
			dir := folder(t, c.jobs...)
			out, errOut, code := f.run(t.Context(), "", "job", "run", "--detach", "-f", dir, "-o", c.format, "--addr", f.addr)
			errOut = strings.ReplaceAll(errOut, dir, "DIR")
			if out != c.out || errOut != c.errors || code != c.code {
				t.Errorf("%v, unknown %v: exit code %d\n%s%s\nwant %d\n%s%s", c.jobs, unknown, code, out, errOut, c.code, c.out, c.errors)
			}
			if n := len(f.taken()); n < c.submitsAtLeast {
				t.Errorf("%v, unknown %v: %d submits, want at least %d", c.jobs, unknown, n, c.submitsAtLeast)
			}
		}
	}
}

// TestManyJobsGoThroughBrokenStreams: jobs without a result are sent again with their keys, and each is reported once.
func TestManyJobsGoThroughBrokenStreams(t *testing.T) {
	f := newFake(t)
	var names []string
	want := ""
	for i := range 600 {
		names = append(names, fmt.Sprintf("j%d", i))
		want += "default/" + names[i] + "\n"
	}
	broken := 0
	f.many.before = func(number int) error {
		switch {
		case number != 150 || broken == 3:
			return nil
		case broken == 0:
			broken++
			f.drop()
			return status.Error(codes.Unavailable, "the connection is gone")
		}
		broken++
		return status.Error(codes.Unavailable, "this server is no longer active")
	}
	out, errOut, code := f.run(t.Context(), "", "job", "run", "--detach", "-f", folder(t, names...), "-o", "name", "--addr", f.addr)
	if code != cli.ExitDone || out != want || errOut != "" {
		t.Errorf("exit code %d, %s\n%s", code, errOut, out)
	}
	keys, jobs := map[string]string{}, map[string]string{}
	for _, m := range f.taken() {
		r := m.(*nusav1.SubmitRequest)
		name, key := r.GetSpec().GetName(), r.GetIdempotencyKey()
		if key == "" || keys[name] != "" && keys[name] != key || jobs[key] != "" && jobs[key] != name {
			t.Errorf("%s has the key %q, before %q, which was of %q", name, key, keys[name], jobs[key])
		}
		keys[name], jobs[key] = key, name
	}
	if broken != 3 || len(keys) != len(names) {
		t.Errorf("%d streams broke, %d jobs were submitted", broken, len(keys))
	}
}

// TestManyJobsMayHaveBeenAccepted: a stream ends for good while a job has no result.
func TestManyJobsMayHaveBeenAccepted(t *testing.T) {
	for _, again := range []bool{false, true} {
		f := newFake(t)
		f.many.before = func(number int) error {
			if number < 1 {
				return nil
			}
			return status.Error(codes.Unauthenticated, "the token has ended")
		}
		args := []string{"job", "run", "--detach", "-f", folder(t, "a", "b", "c"), "--addr", f.addr}
		if again {
			args = []string{"job", "run", "--detach", "--again", "-f", batches(t, "a", "b", "c"), "--addr", f.addr}
		}
		out, errOut, code := f.run(t.Context(), "", args...)
		if code != cli.ExitUnknown || strings.Count(out, "\n") != 2 || !strings.Contains(errOut, "nusa: 2 of 3 jobs were submitted, and continue\n") ||
			!strings.Contains(errOut, "nusa: the token has ended: default/c may have been accepted; ") {
			t.Errorf("again %v: exit code %d\n%s%s", again, code, out, errOut)
		}
		if again != strings.Contains(errOut, "a retry is safe with --idempotency-key ") || again == strings.Contains(errOut, "accepted; a retry is safe\n") {
			t.Errorf("again %v: %s", again, errOut)
		}
	}
}

func batches(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), fmt.Appendf(nil, sample.JobFile, name, "batch"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestManyJobsWaitForTheQueue: a job that finds the queue full is sent again when the server says that this helps.
func TestManyJobsWaitForTheQueue(t *testing.T) {
	f := newFake(t)
	calls := 0
	f.many.submit = func(stream bool, r *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
		full := rpcerr.Error{Code: codes.ResourceExhausted, Message: "the queue is full", RetryAfter: time.Millisecond}
		switch name := r.GetSpec().GetName(); {
		case name == "b" && stream:
			return nil, full.Err()
		case name == "b":
			if calls++; calls < 3 {
				return nil, full.Err()
			}
		case name == "c": // waiting does not help
			full.Reason = rpcerr.ReasonStoreFull
			return nil, full.Err()
		}
		return &nusav1.SubmitResponse{Version: 1, Changed: true}, nil
	}
	dir := folder(t, "a", "b", "c", "d")
	out, errOut, code := f.run(context.Background(), "", "job", "run", "--detach", "-f", dir, "-o", "name", "--addr", f.addr)
	if code != cli.ExitFail || out != "default/a\ndefault/b\ndefault/d\n" || calls != 3 || !strings.Contains(errOut, "/002.yaml: default/c: the queue is full\n") {
		t.Errorf("exit code %d, %d calls\n%s%s", code, calls, out, errOut)
	}
}
