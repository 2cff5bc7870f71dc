package config_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/nusa-scheduler/nusa/internal/config"
)

type settings struct {
	grpcAddr string
	servers  int
	lease    time.Duration
	dev      bool
	join     []string
	labels   map[string]string
	key      string
}

func newFlags() (*pflag.FlagSet, *settings) {
	var s settings
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.StringVar(&s.grpcAddr, "grpc-addr", "127.0.0.1:7600", "")
	flags.IntVar(&s.servers, "bootstrap-expect", 1, "")
	flags.DurationVar(&s.lease, "node-lease", 10*time.Second, "")
	flags.BoolVar(&s.dev, "dev", false, "")
	flags.StringSliceVar(&s.join, "join", nil, "")
	flags.StringToStringVar(&s.labels, "labels", nil, "")
	flags.StringVar(&s.key, "gossip-key", "", "")
	flags.String("config", "", "")
	config.MarkSecret(flags, "gossip-key")
	return flags, &s
}

func env(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

// write returns the path of a file named c.yaml.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFlagsWinOverEnvironmentOverFile(t *testing.T) {
	flags, s := newFlags()
	if err := flags.Parse([]string{"--bootstrap-expect=3", "--join", "x:1"}); err != nil {
		t.Fatal(err)
	}
	path := write(t, `
grpc-addr: 10.0.0.1:7600
bootstrap-expect: 5
node-lease: 20s
dev: true
join: [a:1, b:2]
labels: {zone: "a,b", tier: edge}
`)
	if err := config.Load(flags, env("NUSA_NODE_LEASE", "30s", "NUSA_BOOTSTRAP_EXPECT", "7"), path); err != nil {
		t.Fatal(err)
	}
	if s.servers != 3 || strings.Join(s.join, " ") != "x:1" {
		t.Errorf("a flag lost: %d %v", s.servers, s.join)
	}
	if s.lease != 30*time.Second {
		t.Errorf("the environment lost: %v", s.lease)
	}
	if s.grpcAddr != "10.0.0.1:7600" || !s.dev || s.labels["zone"] != "a,b" || s.labels["tier"] != "edge" {
		t.Errorf("the file lost: %+v", s)
	}
}

func TestListsReplaceDefaults(t *testing.T) {
	flags, s := newFlags()
	if err := config.Load(flags, env("NUSA_JOIN", "c:3,d:4"), write(t, "join: [a:1]\nlabels:\n")); err != nil {
		t.Fatal(err)
	}
	if strings.Join(s.join, " ") != "c:3 d:4" {
		t.Errorf("join %v", s.join)
	}
	flags, s = newFlags()
	if err := config.Load(flags, env(), write(t, `join: ["a b", 'c,d']`)); err != nil {
		t.Fatal(err)
	}
	if strings.Join(s.join, "|") != "a b|c,d" {
		t.Errorf("join %q", s.join)
	}
}

func TestBadFilesAreRefused(t *testing.T) {
	for _, c := range []struct{ file, want string }{
		{"grpc-adr: x\n", "c.yaml:1:1: grpc-adr: unknown setting, did you mean grpc-addr?"},
		{"\n\nzzzzzz: 1\n", "c.yaml:3:1: zzzzzz: unknown setting"},
		{"config: x\n", "c.yaml:1:1: config: unknown setting"},
		{"bootstrap-expect: many\n", `c.yaml:1:19: bootstrap-expect: must be a whole number, not "many"`},
		{"bootstrap-expect: [1]\n", "c.yaml:1:19: bootstrap-expect: must be a whole number, not a list"},
		// "yes" is text in YAML 1.2.
		{"dev: yes\n", `c.yaml:1:6: dev: must be true or false, not "yes"`},
		{"node-lease: 10\n", `c.yaml:1:13: node-lease: must be a duration such as "10s": missing unit in duration "10"`},
		{"join:\n  - {a: b}\n", "c.yaml:2:3: join: must be a list of plain values, not a list with a mapping"},
		{"gossip-key: {hunter2: x}\n", "c.yaml:1:14: gossip-key: must be text, not a mapping"},
		{"- a\n", "c.yaml:1:1: must be one mapping of settings"},
		{"dev: true\ndev: false\n", "c.yaml:2:1: "},
		{"a: [\n", "c.yaml:1:"},
	} {
		flags, _ := newFlags()
		err := config.Load(flags, env(), write(t, c.file))
		if err == nil {
			t.Errorf("%q: no error", c.file)
			continue
		}
		// The error does not name the folder of the file.
		got := err.Error()[strings.Index(err.Error(), "c.yaml"):]
		if !strings.HasPrefix(got, c.want) || strings.Contains(got, "\n") {
			t.Errorf("%q:\n got %s\nwant %s", c.file, got, c.want)
		}
	}
	flags, _ := newFlags()
	if err := config.Load(flags, env(), "/nonexistent/c.yaml"); !errors.Is(err, fs.ErrNotExist) || err.Error() != "/nonexistent/c.yaml: no such file or directory" {
		t.Errorf("got %v", err)
	}
	flags, _ = newFlags()
	if err := config.Load(flags, env("NUSA_BOOTSTRAP_EXPECT", "x"), ""); err == nil || !strings.HasPrefix(err.Error(), "NUSA_BOOTSTRAP_EXPECT: must be a whole number") {
		t.Errorf("got %v", err)
	}
}

func TestEveryProblemIsReported(t *testing.T) {
	flags, s := newFlags()
	if err := flags.Parse([]string{"--bootstrap-expect=3"}); err != nil {
		t.Fatal(err)
	}
	err := config.Load(flags, func(string) (string, bool) { return "", false }, write(t, "x: 1\nbootstrap-expect: z\nnode-lease: 5m\n"))
	if err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("want two problems, got %v", err)
	}
	if s.servers != 3 {
		t.Errorf("the flag's value became %d", s.servers)
	}
}

func TestPrintReadsBackAndHidesSecrets(t *testing.T) {
	flags, _ := newFlags()
	path := write(t, "labels: {zone: \"a,b\", tier: edge}\njoin: [a:1, 'b#']\ngossip-key: hunter2\nnode-lease: 1m\n")
	if err := config.Load(flags, env("NUSA_GRPC_ADDR", "[::1]:1"), path); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := config.Print(&b, flags); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "hunter2") {
		t.Errorf("a secret was printed:\n%s", b.String())
	}
	for _, want := range []string{"# NUSA_GRPC_ADDR", "c.yaml:4", "bootstrap-expect: 1 # default", "gossip-key: a secret, from"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	again, s := newFlags()
	if err := config.Load(again, env(), write(t, b.String())); err != nil {
		t.Fatalf("%v in\n%s", err, b.String())
	}
	if s.grpcAddr != "[::1]:1" || s.lease != time.Minute || s.labels["zone"] != "a,b" || strings.Join(s.join, "|") != "a:1|b#" {
		t.Errorf("read back %+v from\n%s", s, b.String())
	}
}
