package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/spf13/pflag"
)

// effective returns the output of config validate with --insecure.
func effective(t *testing.T, line string) (string, error) {
	t.Helper()
	var out strings.Builder
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(io.Discard)
	root.SetArgs(append([]string{"config", "validate"}, strings.Fields(line+" --insecure")...))
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestBindSetsEveryListener(t *testing.T) {
	const regional = "regional --data-dir d --region a --bind 10.0.0.5"
	for _, c := range []struct {
		line string
		want []string
	}{
		{"global --data-dir d --bind 10.0.0.5", []string{
			`advertise: "10.0.0.5:7600" # bind`, `grpc-addr: "10.0.0.5:7600" # bind`, `http-addr: "10.0.0.5:7601" # bind`,
			`etcd-client-addr: "" # default`, `etcd-peer-addr: "" # default`}},
		{"global --data-dir d --bind 10.0.0.5 --name b --etcd-initial-cluster a=h:7603,b=h:7604", []string{`etcd-peer-addr: "10.0.0.5:7604" # bind`}},
		{"global --data-dir d --name b --etcd-initial-cluster a=h:7603,b=https://h:7604", []string{`etcd-peer-addr: "h:7604" # etcd-initial-cluster`}},
		{regional, []string{
			`advertise: "10.0.0.5" # bind`, `grpc-addr: "10.0.0.5:7610" # bind`, `raft-addr: "10.0.0.5:7611" # bind`,
			`gossip-addr: "10.0.0.5:7612" # bind`, `probe-addr: "10.0.0.5:7613" # bind`, `http-addr: "10.0.0.5:7614" # bind`}},
		{"agent --data-dir d --region a --servers h:1 --bind 10.0.0.5", []string{`http-addr: "10.0.0.5:7620" # bind`}},
		{"agent --data-dir d --region a --servers h:1 --bind [::1]", []string{`http-addr: "[::1]:7620" # bind`}},
		// A more specific flag has priority.
		{regional + " --http-addr 127.0.0.1:99", []string{`http-addr: "127.0.0.1:99" # flag`, `advertise: "10.0.0.5" # bind`}},
		{regional + " --http-addr -", []string{`http-addr: "-" # flag`}},
		{regional + " --advertise 192.0.2.1", []string{`advertise: "192.0.2.1" # flag`, `raft-addr: "10.0.0.5:7611" # bind`}},
		{regional + " --grpc-addr 10.0.0.9:1", []string{`advertise: "" # default`, `grpc-addr: "10.0.0.9:1" # flag`}},
		{"regional --data-dir d --region a --bind 0.0.0.0 --advertise 192.0.2.1", []string{`raft-addr: "0.0.0.0:7611" # bind`}},
		{"global --data-dir d", []string{`advertise: "" # default`, `grpc-addr: "127.0.0.1:7600" # default`}},
	} {
		out, err := effective(t, c.line)
		if err != nil {
			t.Errorf("%s: %v", c.line, err)
		}
		for _, line := range c.want {
			if !strings.Contains(out, line+"\n") {
				t.Errorf("%s: %s is missing in:\n%s", c.line, line, out)
			}
		}
	}
}

func TestBindComesFromTheEnvironment(t *testing.T) {
	t.Setenv("NUSA_BIND", "10.0.0.5")
	t.Setenv("NUSA_RAFT_ADDR", "10.0.0.6:1")
	out, err := effective(t, "regional --data-dir d --region a")
	if err != nil || !strings.Contains(out, `grpc-addr: "10.0.0.5:7610" # bind`) || !strings.Contains(out, `raft-addr: "10.0.0.6:1" # NUSA_RAFT_ADDR`) {
		t.Errorf("%v, %s", err, out)
	}
}

func TestBindRefusesWhatOthersCannotReach(t *testing.T) {
	for line, want := range map[string]string{
		"global --data-dir d --bind 10.0.0.5:7600":                                                       `--bind: "10.0.0.5:7600" is not an IP address or a host`,
		"global --data-dir d --bind 0.0.0.0":                                                             "--bind: no other machine can reach the address 0.0.0.0",
		"global --data-dir d --bind 0.0.0.0 --advertise h:1 --name a --etcd-initial-cluster a=h:1,b=h:2": "--bind: the embedded etcd advertises its addresses",
		"global --data-dir d --name c --etcd-initial-cluster a=h:1,b=h:2":                                "it does not name this server: add c=HOST:PORT",
		"regional --data-dir d --region a --bind ::":                                                     "--bind: no other machine can reach the address ::",
		"agent --data-dir d --region a --servers h:1 --bind x/":                                          `--bind: "x/" is not an IP address or a host`,
	} {
		if _, err := effective(t, line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

// TestBindIsNamed: the error about an address of another machine names --bind, which set it.
func TestBindIsNamed(t *testing.T) {
	taken := fmt.Errorf("listen: %w", syscall.EADDRNOTAVAIL)
	for line, want := range map[string]string{"--bind=192.0.2.1": "--bind, which is 192.0.2.1", "": ""} {
		cmd := globalCommand()
		if err := cmd.ParseFlags(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{nil, io.EOF, taken} {
			got := explainBind(cmd.Flags(), err)
			if !errors.Is(got, err) || errors.Is(err, taken) && !strings.Contains(got.Error(), want) || want == "" && got != err {
				t.Errorf("%q, %v: %v, want %q", line, err, got, want)
			}
		}
	}
}

// TestLoopbackWarning: a server that joins servers on other machines, and that those
// machines cannot reach, warns in the log and on standard error.
func TestLoopbackWarning(t *testing.T) {
	for line, want := range map[string]string{
		"global --data-dir d": "",
		"global --data-dir d --etcd-endpoints http://127.0.0.1:7602":                      "",
		"global --data-dir d --etcd-endpoints http://10.0.0.1:7602":                       "--etcd-endpoints http://10.0.0.1:7602 is on another machine",
		"global --data-dir d --name a --etcd-initial-cluster a=127.0.0.1:1,b=10.0.0.2:1":  "--etcd-initial-cluster b=10.0.0.2:1 is on another machine",
		"regional --data-dir d --region a --join localhost:7612 --global [::1]:7600":      "",
		"regional --data-dir d --region a --join 10.0.0.1:7612":                           "--join 10.0.0.1:7612 is on another machine",
		"regional --data-dir d --region a --global g.example:7600":                        "--global g.example:7600 is on another machine",
		"regional --data-dir d --region a --global g.example:7600 --bind 10.0.0.2":        "",
		"regional --data-dir d --region a --global g.example:7600 --raft-addr 10.0.0.2:1": "",
		"regional --data-dir d --region a --global g.example:7600 --http-addr 10.0.0.2:1": "--global g.example:7600 is on another machine",
		"agent --data-dir d --region a --servers 10.0.0.1:7610":                           "",
	} {
		var command *cobra.Command
		args := strings.Fields(line)
		for _, c := range []*cobra.Command{globalCommand(), regionalCommand(), agentCommand()} {
			if c.Name() == args[0] {
				command = c
			}
		}
		var text string
		command.RunE = func(cmd *cobra.Command, _ []string) error {
			text = loopbackWarning(cmd.Flags())
			return nil
		}
		command.GroupID = ""
		command.SetArgs(append(args[1:], "--insecure"))
		if err := command.ExecuteContext(t.Context()); err != nil || !strings.HasPrefix(text, want) || (want == "") != (text == "") {
			t.Errorf("%s: %v, %q, want %q", line, err, text, want)
		}
	}
	var log, stderr bytes.Buffer
	warnLoopback(slog.New(slog.NewTextHandler(&log, nil)), &stderr, "--join h:1 is on another machine")
	if !strings.Contains(log.String(), "level=WARN") || stderr.String() != "nusa: warning: --join h:1 is on another machine\n" {
		t.Errorf("log %q, standard error %q", log.String(), stderr.String())
	}
}

// TestBoundAddress: services name the address of --bind, unless no other machine can reach that address.
func TestBoundAddress(t *testing.T) {
	for bind, want := range map[string]string{"": "", "10.0.0.7": "10.0.0.7", "[2001:db8::7]": "2001:db8::7", "127.0.0.1": "", "0.0.0.0": "", "::": "", "node7": ""} {
		f := pflag.NewFlagSet("agent", pflag.ContinueOnError)
		f.String("bind", bind, "")
		if got := boundAddress(f); got != want {
			t.Errorf("--bind %s: %q, want %q", bind, got, want)
		}
	}
}
