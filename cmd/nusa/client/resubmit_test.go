package client

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestHintsNameTheBinaryAsCalled: hints can be copied and run.
func TestHintsNameTheBinaryAsCalled(t *testing.T) {
	for arg0, want := range map[string]string{
		"nusa": "nusa", "./bin/nusa": "./bin/nusa", "/opt/nusa-1.2/nusa": "/opt/nusa-1.2/nusa", "other": "nusa", "": "nusa",
	} {
		if got := cli.ProgramName(arg0); got != want {
			t.Errorf("called %q, the hints say %q, want %q", arg0, got, want)
		}
	}
	f := newFake(t)
	for _, c := range []struct{ stdin, line, want string }{
		{"", "job list -l a=b", "; ./bin/nusa job list shows all"},
		{"", "job status", "usage: ./bin/nusa job status JOB"},
		{"", "job run --help", "  ./bin/nusa job run hello.yaml\n"},
		{"", "nonsense", "unknown command \"nonsense\" of ./bin/nusa"},
		{fmt.Sprintf(sample.JobFile, "ended", "batch"), "job run -d -", "run it again with ./bin/nusa job run --again FILE"},
		{fmt.Sprintf(sample.JobFile, "same", "service"), "job run -d --tag v1 -", "default/same unchanged, version 2 (revision 12), with the tag v1\n"},
		{fmt.Sprintf(sample.JobFile, "api", "service"), "job plan -", "to make exactly these changes: ./bin/nusa job run"},
		{"variables: {tag: x}\n" + fmt.Sprintf(sample.JobFile, "api", "service"), "job plan --var tag=it's -", `./bin/nusa job run --check-revision 120 --var 'tag=it'\''s' FILE`},
		{fmt.Sprintf(sample.JobFile, "ended", "batch"), "job run -", "run it again with ./bin/nusa job run --again FILE"},
	} {
		root := Root()
		root.AddCommand(Commands()...)
		cli.SetProgram(root, "./bin/nusa")
		var out strings.Builder
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetIn(strings.NewReader(c.stdin))
		args := strings.Fields(c.line)
		if len(args) > 1 {
			args = append(args, "--addr", f.addr)
		}
		ExecuteArgs(context.Background(), root, args)
		if !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: %q is not in:\n%s", c.line, c.want, out.String())
		}
	}
}

// TestSubmitIsRetriedWithTheSameKey: if a connection breaks during a submit, the job is not
// submitted twice. Two calls are two submits.
func TestSubmitIsRetriedWithTheSameKey(t *testing.T) {
	f := newFake(t)
	keys := func(args ...string) []string {
		_, errOut, code := f.run(context.Background(), fmt.Sprintf(sample.JobFile, "flaky", "batch"), append([]string{"job", "run", "-", "-d", "--addr", f.addr}, args...)...)
		if code != 0 {
			t.Fatalf("exit code %d, %s", code, errOut)
		}
		var out []string
		for _, r := range f.taken() {
			submit := r.(*nusav1.SubmitRequest)
			if submit.GetAgain() != (len(args) == 1) {
				t.Errorf("%v: again is %v", args, submit.GetAgain())
			}
			out = append(out, submit.GetIdempotencyKey())
		}
		return out
	}
	first, second, own := keys(), keys("--again"), keys("--idempotency-key", "mine")
	for _, k := range [][]string{first, second, own} {
		if len(k) != submitAttempts || k[0] == "" || k[1] != k[0] || k[2] != k[0] {
			t.Errorf("the keys were %q, want %d times the same one", k, submitAttempts)
		}
	}
	if first[0] == second[0] || own[0] != "mine" {
		t.Errorf("the keys were %q, %q and %q", first[0], second[0], own[0])
	}
}

// TestExportedJobSubmitsUnchanged: submitting the output of job export changes nothing.
func TestExportedJobSubmitsUnchanged(t *testing.T) {
	files, err := filepath.Glob("../../../examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f := newFake(t)
	seen := 0
	for _, file := range files {
		if base := filepath.Base(file); base == "region.yaml" || base == "origins.yaml" {
			continue
		}
		seen++
		if _, errOut, code := f.run(context.Background(), "", "job", "run", "-d", file, "--addr", f.addr); code != 0 {
			t.Fatalf("%s: %s", file, errOut)
		}
		stored := f.taken()[0].(*nusav1.SubmitRequest).GetSpec()
		f.stored = stored
		for _, format := range []string{"yaml", "json"} {
			text, errOut, code := f.run(context.Background(), "", "job", "export", "stored", "-o", format, "--addr", f.addr)
			if code != 0 {
				t.Fatalf("%s: %s", file, errOut)
			}
			f.taken() // forget the requests of the export
			if _, errOut, code := f.run(context.Background(), text, "job", "run", "-d", "-", "--addr", f.addr); code != 0 {
				t.Fatalf("%s: %s\n%s", file, errOut, text)
			}
			if again := f.taken()[0].(*nusav1.SubmitRequest).GetSpec(); !proto.Equal(stored, again) {
				t.Errorf("%s as %s: got %v\nwant %v", file, format, again, stored)
			}
		}
	}
	if seen < 3 {
		t.Errorf("only %d examples", seen)
	}
}

// TestStatusOutputIsRefusedAsJobFile: submitting the output of job status fails and suggests
// job export.
func TestStatusOutputIsRefusedAsJobFile(t *testing.T) {
	f := newFake(t)
	for _, format := range []string{"yaml", "json"} {
		text, errOut, code := f.run(context.Background(), "", "job", "status", "ended", "-o", format, "--addr", f.addr)
		if code != 0 {
			t.Fatalf("%s: %s", format, errOut)
		}
		_, errOut, code = f.run(context.Background(), text, "job", "run", "-", "--addr", f.addr)
		if code != cli.ExitFail || !strings.Contains(errOut, "`nusa job export ended` writes one") || strings.Contains(errOut, "unknown field") {
			t.Errorf("%s: exit code %d, %s", format, code, errOut)
		}
		text, errOut, code = f.run(context.Background(), "", "job", "get", "ended", "-o", format, "--addr", f.addr)
		if code != 0 {
			t.Fatalf("%s: %s", format, errOut)
		}
		_, errOut, code = f.run(context.Background(), text, "job", "run", "-d", "-", "--addr", f.addr)
		if code != 0 {
			t.Errorf("%s: exit code %d, %s", format, code, errOut)
		}
	}
}

// TestUnsentSubmitIsNotUnknown: a server accepts the connection and never responds. The job
// was not sent to that server, so the error does not say that the job may have been
// accepted.
func TestUnsentSubmitIsNotUnknown(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	f := &fake{}
	_, errOut, code := f.run(context.Background(), fmt.Sprintf(sample.JobFile, "a", "service"), "job", "run", "-", "--timeout", "300ms", "--addr", mute.Addr().String())
	if code != cli.ExitFail || !strings.Contains(errOut, "no response from") || strings.Contains(errOut, "may have been accepted") {
		t.Errorf("exit code %d, %s", code, errOut)
	}
}
