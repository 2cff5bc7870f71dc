package client

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/golden"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// letterServer has two dead letters. Like an earlier version, it ignores labels. It returns the specs of redrives to the test.
type letterServer struct {
	nusav1.UnimplementedDeadLettersServer
	redriven []*nusav1.JobSpec
}

// stamps are the times in the output of -o yaml.
var stamps = regexp.MustCompile(`"?\d{4}-\d\d-\d\dT[0-9:.]+Z"?`)

const (
	lettersFirst  = "3f9a01bc0d0e0f01"
	lettersSecond = "77aa01bc0d0e0f02"
)

func (s *letterServer) all() []*nusav1.DeadLetter {
	at := time.Now().Add(-90 * time.Minute)
	stamp := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(at.Add(d)) }
	oom := &nusav1.Failure{Category: nusav1.FailureCategory_FAILURE_CATEGORY_OOM, Task: "main", Signal: 9}
	exit := &nusav1.Failure{Category: nusav1.FailureCategory_FAILURE_CATEGORY_APP, Task: "main", ExitCode: 3}
	attempt := func(region, node string, f *nusav1.Failure, text string) *nusav1.FailedAttempt {
		return &nusav1.FailedAttempt{Allocation: "0198f2a0-0000-7000-8000-000000000001", Region: region, Node: node, Started: stamp(-time.Minute), Ended: stamp(0), Failure: f, Message: text}
	}
	return []*nusav1.DeadLetter{
		{
			Id: lettersFirst, State: nusav1.DeadLetterState_DEAD_LETTER_STATE_OPEN, Namespace: "default", Job: "frames", Group: "frame", Index: 17, JobVersion: 2,
			Failure: oom, Message: "the task used more memory than its limit; retry.rules[0] matches (oom): no further attempt", AttemptCount: 4, Region: "jakarta", Failed: stamp(0), HasSpec: true,
			Attempts: []*nusav1.FailedAttempt{attempt("singapore", "bm-3", exit, "task main exited with code 3"), attempt("jakarta", "bm-1", oom, "out of memory")},
		},
		{
			Id: lettersSecond, State: nusav1.DeadLetterState_DEAD_LETTER_STATE_REDRIVEN, Namespace: "media", Job: "etl.20261129-023000", Group: "main", JobVersion: 1,
			Failure: exit, AttemptCount: 1, Region: "jakarta", Failed: stamp(0), RedrivenAs: "etl.r" + lettersSecond, Redriven: stamp(time.Hour), RedrivenBy: "operator/jane",
			Attempts: []*nusav1.FailedAttempt{attempt("jakarta", "bm-1", exit, "task main exited with code 3")},
		},
	}
}

func (s *letterServer) List(_ context.Context, r *nusav1.ListDeadLettersRequest) (*nusav1.ListDeadLettersResponse, error) {
	out := &nusav1.ListDeadLettersResponse{Retention: &nusav1.DeadLetterRetention{Age: durationpb.New(720 * time.Hour), Most: 10_000, Count: 2, Open: 1}}
	for _, l := range s.all() {
		if (r.GetJob() == "" || r.GetJob() == l.GetJob()) && (r.GetState() == 0 || r.GetState() == l.GetState()) {
			out.DeadLetters = append(out.DeadLetters, l)
		}
	}
	return out, nil
}

func (s *letterServer) find(id string) (*nusav1.DeadLetter, error) {
	for _, l := range s.all() {
		if strings.HasPrefix(l.GetId(), id) {
			return l, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "there is no dead letter %q", id)
}

func (s *letterServer) Get(_ context.Context, r *nusav1.GetDeadLetterRequest) (*nusav1.DeadLetter, error) {
	l, err := s.find(r.GetId())
	if err == nil {
		l.Log = "frame 17 needs a large buffer\nmalloc: cannot allocate"
	}
	if err == nil && r.GetSpec() {
		l.Spec, err = job.Parse([]byte("name: frames\ntype: batch\ngroups: {frame: {count: 1, tasks: {main: {driver: process, config: {command: /usr/bin/env}, resources: {memory: 256MiB}}}}}"), "")
	}
	return l, err
}

func (s *letterServer) Redrive(_ context.Context, r *nusav1.RedriveRequest) (*nusav1.DeadLetter, error) {
	l, err := s.find(r.GetId())
	switch {
	case err != nil:
		return nil, err
	case l.GetRedrivenAs() != "":
		return nil, status.Errorf(codes.FailedPrecondition, "dead letter %s was redriven as job %s", l.GetId(), l.GetRedrivenAs())
	}
	s.redriven = append(s.redriven, r.GetSpec())
	l = proto.CloneOf(l)
	l.RedrivenAs = l.GetJob() + ".r" + l.GetId()
	return l, nil
}

func (s *letterServer) Drop(_ context.Context, r *nusav1.DropDeadLetterRequest) (*nusav1.DeadLetter, error) {
	return s.find(r.GetId())
}

// TestDeadLetterCommands compares the output of the commands with testdata/deadletter.txt.
func TestDeadLetterCommands(t *testing.T) {
	f := newFake(t)
	var out strings.Builder
	for _, line := range []string{
		"list", "list --job nothing", "list --state open -o yaml", "list --category gone", "list --state gone",
		"show 3f9a", "show 3f9a --spec", "show 77aa", "show 00",
		"redrive 3f9a01bc", "redrive 77aa", "redrive --job frames", "redrive", "redrive 3f9a --job frames", "redrive 3f9a 77aa --edit", "redrive -l team=sea",
		"drop 3f9a01bc", "drop 00 3f9a01bc", "drop --job frames", "drop --job nothing", "drop -l team=sea", "list -l team=sea", "drop",
	} {
		o, e, code := f.run(t.Context(), "", append(strings.Fields("deadletter "+line), "--addr", f.addr)...)
		o = stamps.ReplaceAllString(o, "TIME")
		out.WriteString("$ nusa deadletter " + line + "\n" + o)
		for l := range strings.Lines(e) {
			out.WriteString("2> " + strings.ReplaceAll(l, f.addr, "ADDR"))
		}
		out.WriteString("= " + string(rune('0'+code)) + "\n\n")
	}
	golden.File(t, "testdata/deadletter.txt", out.String())
}

// TestEditedRedrive: an editor changes the job that a redrive submits. The file stays if the server refuses it.
func TestEditedRedrive(t *testing.T) {
	f := newFake(t)
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Setenv("VISUAL", "")
	t.Setenv("EDITOR", "sed -i s/256MiB/512MiB/")
	out, errOut, code := f.run(t.Context(), "", "deadletter", "redrive", "3f9a", "--edit", "--addr", f.addr)
	if code != 0 || !strings.Contains(out, "runs again as default/frames.r"+lettersFirst) {
		t.Fatalf("code %d: %s%s", code, out, errOut)
	}
	if got := f.letters.redriven[0].GetGroups()["frame"].GetTasks()["main"].GetResources().GetMemoryBytes(); got != 512<<20 {
		t.Errorf("the job has %d bytes of memory", got)
	}
	if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
		t.Errorf("files %v stay", left)
	}
	if _, errOut, code := f.run(t.Context(), "", "deadletter", "redrive", "77aa", "--edit", "--addr", f.addr); code != 1 || !strings.Contains(errOut, "redrive 77aa01bc0d0e0f02 --file "+dir) {
		t.Errorf("code %d: %s", code, errOut)
	}
	if left, _ := filepath.Glob(dir + "/*/*.yaml"); len(left) != 1 {
		t.Errorf("files %v stay, want one", left)
	}
	for _, editor := range []string{"true", "sed -i 1d"} { // it leaves the job as it is
		t.Setenv("EDITOR", editor)
		_, errOut, code := f.run(t.Context(), "", "deadletter", "redrive", "3f9a", "--edit", "--addr", f.addr)
		if left, _ := filepath.Glob(dir + "/*/*.yaml"); code != 1 || !strings.Contains(errOut, "run it again as it is with nusa deadletter redrive 3f9a01bc0d0e0f01") || len(left) != 1 || len(f.letters.redriven) != 1 {
			t.Errorf("editor %s: code %d, files %v: %s", editor, code, left, errOut)
		}
	}
	t.Setenv("EDITOR", "truncate -s 0")
	if _, errOut, code := f.run(t.Context(), "", "deadletter", "redrive", "3f9a", "--edit", "--addr", f.addr); code != 1 || !strings.Contains(errOut, "nothing is redriven") {
		t.Errorf("code %d: %s", code, errOut)
	}
	file := filepath.Join(dir, "frames.yaml")
	if err := os.WriteFile(file, []byte("name: frames\ntype: batch\ngroups: {frame: {tasks: {main: {driver: process, config: {command: x}}}}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, errOut, code := f.run(t.Context(), "", "deadletter", "redrive", "3f9a", "--file", file, "--addr", f.addr); code != 0 || len(f.letters.redriven) != 2 {
		t.Errorf("code %d: %s%s", code, out, errOut)
	}
}
