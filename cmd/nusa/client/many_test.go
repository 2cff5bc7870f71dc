package client

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
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
	// unasked: the server reads no submit of a stream, and sends so many responses.
	unasked int
	// twice: the server sends the second response of a stream twice.
	twice bool
}

func (f *fake) SubmitMany(s grpc.BidiStreamingServer[nusav1.SubmitRequest, nusav1.SubmitManyResponse]) error {
	if f.many.unknown {
		return f.UnimplementedJobsServer.SubmitMany(s)
	}
	for range f.many.unasked {
		if err := s.Send(&nusav1.SubmitManyResponse{Response: &nusav1.SubmitResponse{Version: 1}}); err != nil {
			return err
		}
	}
	if f.many.unasked > 0 {
		<-s.Context().Done()
		return s.Context().Err()
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
		for times := 1; times > 0; times-- {
			if f.many.twice && number == 1 {
				f.many.twice, times = false, 2
			}
			if err := s.Send(&nusav1.SubmitManyResponse{Response: resp, Code: int32(st.Code()), Error: st.Message(), Problems: rpcerr.Problems(err)}); err != nil {
				return err
			}
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
			"nusa: etcd has no quorum: 1 of 3 members answer: default/quorum may have been accepted; a retry is safe\n", cli.ExitUnknown, "", 2},
	} {
		for _, unknown := range []bool{false, true} {
			if unknown && c.code == cli.ExitUnknown { // only the stream leaves a doubt: a call that fails has a response
				c.errors, c.code = strings.Replace(c.errors, "default/quorum may have been accepted; a retry is safe", "try again in a few seconds", 1), cli.ExitFail
			}
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

// TestManyJobsOutlastAFailover: the active server steps down, and another one becomes active a little later. Each job is
// submitted once. The first job does not wait, and no job waits for longer than the time-out.
func TestManyJobsOutlastAFailover(t *testing.T) {
	const names = "default/a\ndefault/b\ndefault/c\ndefault/d\n"
	for _, c := range []struct {
		last   string // the last job that is stored before the server steps down
		down   int    // how many submits find no active server
		after  time.Duration
		out    string
		code   int
		errors string
	}{
		{"a", 9, time.Millisecond, names, cli.ExitDone, ""},
		{"b", 9, time.Millisecond, names, cli.ExitDone, ""},
		{"b", 1_000, time.Hour, names[:20], cli.ExitUnknown, "not the active server: default/c"},
		{"", 9, time.Millisecond, "", cli.ExitFail, "not the active server: try again"},
	} {
		f := newFake(t)
		stored, down := map[string]int{}, -1
		if c.last == "" {
			down = c.down
		}
		var mu sync.Mutex
		f.many.submit = func(_ bool, r *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
			mu.Lock()
			defer mu.Unlock()
			if down > 0 {
				down--
				return nil, rpcerr.Error{Code: codes.Unavailable, Message: "not the active server", RetryAfter: c.after}.Err()
			}
			name := r.GetSpec().GetName()
			stored[name]++
			if name == c.last {
				down = c.down
			}
			return &nusav1.SubmitResponse{Version: 1, Changed: true}, nil
		}
		out, errOut, code := f.run(t.Context(), "", "job", "run", "--detach", "-f", folder(t, "a", "b", "c", "d"), "-o", "name", "--addr", f.addr)
		if code != c.code || out != c.out || !strings.Contains(errOut, c.errors) || c.errors == "" && errOut != "" {
			t.Errorf("%+v: exit code %d\n%s%s", c, code, out, errOut)
		}
		mu.Lock()
		if len(stored) != strings.Count(c.out, "\n") || stored["a"] > 1 || stored["b"] > 1 || stored["c"] > 1 || stored["d"] > 1 {
			t.Errorf("%+v: stored %v", c, stored)
		}
		mu.Unlock()
	}
}

// TestManyJobsWithAnOpenResult: the response to one job leaves open whether it was accepted. The command says so.
func TestManyJobsWithAnOpenResult(t *testing.T) {
	for _, code := range []codes.Code{codes.DeadlineExceeded, codes.Canceled, codes.Unauthenticated} {
		f := newFake(t)
		f.many.submit = func(stream bool, _ *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
			if stream {
				return nil, status.Error(code, "the region is gone")
			}
			return &nusav1.SubmitResponse{Version: 1, Changed: true}, nil
		}
		_, errOut, exit := f.run(t.Context(), "", "job", "run", "--detach", "-f", folder(t, "a", "b", "c"), "-o", "name", "--addr", f.addr)
		why := "the region is gone: "
		if code == codes.DeadlineExceeded {
			why = "no response from "
		}
		if exit != cli.ExitUnknown || !strings.Contains(errOut, why) || !strings.Contains(errOut, ": default/b") || !strings.Contains(errOut, " may have been accepted; ") {
			t.Errorf("%s: exit code %d\n%s", code, exit, errOut)
		}
	}
}

// ends runs a command that has to end by itself.
func ends(t *testing.T, ctx context.Context, f *fake, args ...string) (errOut string, code int) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, errOut, code = f.run(ctx, "", args...)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the command goes on")
	}
	return errOut, code
}

// TestManyJobsAreInterrupted: an interrupt ends a command that waits for a response.
func TestManyJobsAreInterrupted(t *testing.T) {
	dir := folder(t, "a", "b", "c")
	whole, over := context.WithTimeout(t.Context(), time.Minute)
	defer over()
	for range 10 { // without the check, each run ends at once by chance
		f := newFake(t)
		ctx, cancel := context.WithCancel(whole)
		block := make(chan struct{})
		f.many.before = func(int) error { cancel(); <-block; return nil }
		errOut, code := ends(t, ctx, f, "job", "run", "--detach", "-f", dir, "-o", "name", "--addr", f.addr)
		close(block)
		if code != cli.ExitUnknown || !strings.Contains(errOut, "nusa: interrupted: default/b") {
			t.Errorf("exit code %d\n%s", code, errOut)
		}
	}
	if whole.Err() != nil {
		t.Error("the runs took more than a minute")
	}
}

// TestManyJobsWithTooManyResponses: a server sends a response to a job that it was not sent.
func TestManyJobsWithTooManyResponses(t *testing.T) {
	f := newFake(t)
	f.many.unasked = 12
	dir := t.TempDir()
	large := strings.Repeat("x", 100_000) // the client cannot send all the jobs to a server that reads none
	for i := range f.many.unasked + 1 {
		text := fmt.Sprintf("name: j%d\ngroups: {web: {count: 1, tasks: {t: {driver: process, config: {command: x}, env: {A: %s}}}}}\n", i, large)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%03d.yaml", i)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	errOut, code := ends(t, t.Context(), f, "job", "run", "--detach", "-f", dir, "-o", "name", "--addr", f.addr)
	if code == cli.ExitDone || !strings.Contains(errOut, "sent more responses than jobs: see nusa job list") {
		t.Errorf("exit code %d\n%s", code, errOut)
	}
}

// TestManyJobsWithAResponseTooMany: a server sends one response twice while the next jobs are open.
func TestManyJobsWithAResponseTooMany(t *testing.T) {
	f := newFake(t)
	f.many.twice = true
	_, errOut, code := f.run(t.Context(), "", "job", "run", "--detach", "-f", folder(t, "a", "b", "c", "d", "e"), "-o", "name", "--addr", f.addr)
	if code == cli.ExitDone || !strings.Contains(errOut, "sent more responses than jobs") {
		t.Errorf("exit code %d\n%s", code, errOut)
	}
}
