package client

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/internal/golden"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestMain(m *testing.M) {
	for _, k := range []string{"NUSA_ADDR", "NUSA_REGION", "NUSA_NAMESPACE", "NUSA_IDENTITY"} {
		os.Unsetenv(k)
	}
	goleak.VerifyTestMain(m)
}

var (
	elapsed = regexp.MustCompile(`(?m)^ *[0-9.]+m?s (pending|partial|starting|running|failed|complete|stopped)`)
	after   = regexp.MustCompile(`after [0-9.]+m?s\b`)
	clock   = regexp.MustCompile(`\b\d\d:\d\d:\d\d\b`)
	silence = regexp.MustCompile(`\b(since|unknown for|cut off for|would move in) [0-9]+s\b`)
	lasts   = regexp.MustCompile(`\bfor [0-9]+d([0-9]+h)?\b`)
	build   = regexp.MustCompile(`\(go[^)]*\)`)
)

// TestCommands runs the lines of testdata/commands.txt that start with "$ " and compares
// their output. "2> " marks standard error, "= " marks the exit code. A word in {} stands
// for a job file of that name on standard input.
func TestCommands(t *testing.T) {
	script, err := os.ReadFile("testdata/commands.txt")
	if err != nil {
		t.Fatal(err)
	}
	f := newFake(t)
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("regions.yaml", "name: a\n---\nname: b\n")
	write("origins.yaml", "domain: www.example.com\norigins: [{region: jakarta, weight: 2}, {region: japaneast}]\npolicy: {max_rtt: 80ms}\n---\ndomain: example.net\norigins: [{region: jakarta}]\n")
	write("strange.yaml", "domain: www.example.com\norigins: [{region: jakarta}]\n---\ndomain: example.net\norigins: [{region: japaneest}, {region: mars}]\n")
	write("units.yaml", "domain: www.example.com\norigins: [{region: eastus, wieght: 2}]\npolicy: {max_rtt: 80}\n")
	web := "name: web\ngroups: {web: {count: 1, tasks: {t: {driver: process, config: {command: /bin/true}}}}}\n"
	write("two.yaml", web+"---\n"+strings.Replace(web, "name: web", "name: shop", 1))
	write("twice.yaml", web+"---\n"+web)
	names := strings.NewReplacer(f.addr, "ADDR", dir, "DIR")
	var out strings.Builder
	ran := 0
	for _, line := range strings.Split(string(script), "\n") {
		command, isCommand := strings.CutPrefix(line, "$ nusa ")
		if !isCommand {
			if strings.HasPrefix(line, "#") {
				out.WriteString("\n" + line + "\n")
			}
			continue
		}
		ran++
		var args []string
		stdin := ""
		for _, a := range strings.Fields(command) {
			if a == "{long}" {
				a = strings.Repeat("long.", 60) + "example.com"
			}
			if name, kind, ok := jobFile(a); ok {
				stdin, a = fmt.Sprintf(sample.JobFile, name, kind), "-"
			}
			args = append(args, strings.ReplaceAll(a, "DIR", dir))
		}
		if !strings.Contains(command, "--addr") && args[0] != "nonsense" && !offline(args) {
			args = append(args, "--addr", f.addr)
		}
		o, e, code := f.run(context.Background(), stdin, args...)
		o = lasts.ReplaceAllString(elapsed.ReplaceAllString(o, "    0s $1"), "for 0s")
		fmt.Fprintf(&out, "\n%s\n", line)
		out.WriteString(build.ReplaceAllString(clock.ReplaceAllString(after.ReplaceAllString(names.Replace(silence.ReplaceAllString(o, "$1 0s")), "after 0s"), "00:00:00"), "(BUILD)"))
		for _, l := range strings.Split(strings.TrimSuffix(names.Replace(reconnected.ReplaceAllString(silence.ReplaceAllString(e, "$1 0s"), "reconnected after 0s")), "\n"), "\n") {
			if l != "" {
				out.WriteString("2> " + l + "\n")
			}
		}
		fmt.Fprintf(&out, "= %d\n", code)
	}
	if ran < 50 {
		t.Errorf("only %d commands in the script", ran)
	}
	golden.File(t, "testdata/commands.txt", strings.TrimPrefix(out.String(), "\n"))
}

// jobFile reads {name} and {name:type}.
func jobFile(s string) (name, kind string, ok bool) {
	if !strings.HasPrefix(s, "{") || !strings.HasSuffix(s, "}") {
		return "", "", false
	}
	name, kind, found := strings.Cut(strings.Trim(s, "{}"), ":")
	if !found {
		kind = "service"
	}
	return name, kind, true
}

// offline reports whether a command has no --addr.
func offline(args []string) bool {
	return args[0] == "--version" || args[0] == "help"
}

// TestFlagsReachTheRequest: flags and arguments have an effect on the request.
func TestFlagsReachTheRequest(t *testing.T) {
	f := newFake(t)
	for _, c := range []struct {
		line string
		want proto.Message
	}{
		{"job status shop/api", &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: "shop", Name: "api"}}},
		{"job status api@eastus -n shop", &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: "shop", Name: "api", Region: "eastus"}}},
		{"job stop api --purge --check-revision 9", &nusav1.StopJobRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "api"}, Purge: true, CheckRevision: 9}},
		{"job explain api --region eastus --group web", &nusav1.ExplainRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "api"}, Region: "eastus", Group: "web"}},
		{"alloc list --job api --node n --region eastus --all", &nusav1.ListAllocationsRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "api"}, NodeId: "aaaabbbb-cccc", Region: "eastus", All: true}},
		{"alloc list -n shop", &nusav1.ListAllocationsRequest{Job: &nusav1.JobRef{Namespace: "shop"}}},
		{"alloc logs 11112222 -f --task t --stderr --tail 100", &nusav1.LogsRequest{Allocation: "11112222-3333-4444-5555-666677778888", Task: "t", Follow: true, Stderr: true, TailLines: 100}},
		{"alloc logs 11112222 --bytes 100 --task server", &nusav1.LogsRequest{Allocation: "11112222-3333-4444-5555-666677778888", Task: "server", Stdout: true, Stderr: true, TailBytes: 100}},
		{"job logs api/web/4", &nusav1.ListAllocationsRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "api"}, Limit: 10000}},
		{"node list --region eastus --pool gpu", &nusav1.ListNodesRequest{Region: "eastus", Pool: "gpu"}},
		{"node drain n1 --region eastus", &nusav1.DrainNodeRequest{Id: "n1", Region: "eastus", Drain: true}},
		{"node drain n1 --off", &nusav1.DrainNodeRequest{Id: "n1"}},
		{"node remove lost --region japaneast", &nusav1.RemoveNodeRequest{Id: "lost", Region: "japaneast"}},
		{"region drain japaneast", &nusav1.DrainRegionRequest{Name: "japaneast", Drain: true}},
		{"region drain japaneast --off", &nusav1.DrainRegionRequest{Name: "japaneast"}},
		{"region failback eastus", &nusav1.FailbackRequest{Name: "eastus"}},
		{"region failback eastus --apply", &nusav1.FailbackRequest{Name: "eastus", Apply: true}},
		{"node cordon n1", &nusav1.CordonNodeRequest{Id: "n1", Cordon: true}},
		{"node uncordon n1", &nusav1.CordonNodeRequest{Id: "n1"}},
		{"server recover --federation fed", &nusav1.RecoverRequest{FederationId: "fed"}},
		{"region lose jakarta --confirm jakarta --why burnt --by ayu", &nusav1.LoseRegionRequest{Name: "jakarta", Confirm: "jakarta", Why: "burnt", By: "ayu"}},
		{"topology path a b -k 5 --relays 0 -p 90", &nusav1.PathRequest{From: "a", To: "b", K: 5, MaxRelays: -1, Percentile: 90}},
		{"topology path a b --cpu-weight 5ms", &nusav1.PathRequest{From: "a", To: "b", K: 3, MaxRelays: 2, Percentile: 50, Weights: &nusav1.PathWeights{Cpu: sample.Lasting(5 * time.Millisecond), Queue: sample.Lasting(0)}}},
		{"topology check --limit 3 --min-gain 0.2", &nusav1.CheckTopologyRequest{Percentile: 50, Limit: 3, MinGain: 0.2}},
		{"origin set *.Example.com --region a:2=host:1 --region b --drained b --max-rtt 80ms --relays 0 --no-guesses --check-revision -1", &nusav1.SetOriginsRequest{Revision: -1, Record: &nusav1.OriginRecord{
			Domain: "*.Example.com", Origins: []*nusav1.Origin{{Region: "a", Weight: 2, Address: "host:1"}, {Region: "b", Drained: true}}, Revision: 7,
			Policy: &nusav1.OriginPolicy{Percentile: 50, MaxRtt: sample.Lasting(80 * time.Millisecond), MaxRelays: -1, NoGuesses: true, MinRelayGain: 0.1}}}},
		{"origin remove example.com --check-revision 3", &nusav1.RemoveOriginsRequest{Domain: "example.com", Revision: 3}},
		{"origin resolve example.com --location=-6.2,106.8 --current a", &nusav1.ResolveOriginRequest{Domain: "example.com", Location: &nusav1.Location{Latitude: -6.2, Longitude: 106.8}, Current: "a"}},
		{"topology nearest --location=-6.2,106.8 -k 3 -p 99", &nusav1.NearestRequest{Location: &nusav1.Location{Latitude: -6.2, Longitude: 106.8}, Limit: 3, Percentile: 99}},
	} {
		f.requests = nil
		_, errOut, code := f.run(context.Background(), "", append(strings.Fields(c.line), "--addr", f.addr)...)
		// Some commands send several requests.
		asked := slices.ContainsFunc(f.requests, func(r proto.Message) bool { return proto.Equal(r, c.want) })
		if code != 0 || !asked {
			t.Errorf("%s: exit code %d, %s\n got %v\nwant %v", c.line, code, errOut, f.requests, c.want)
		}
	}
}

func TestEnvironmentSetsDefaults(t *testing.T) {
	f := newFake(t)
	t.Setenv("NUSA_ADDR", f.addr)
	t.Setenv("NUSA_NAMESPACE", "shop")
	t.Setenv("NUSA_REGION", "eastus")
	if _, errOut, code := f.run(context.Background(), "", "alloc", "list"); code != 0 {
		t.Fatal(errOut)
	}
	want := &nusav1.ListAllocationsRequest{Job: &nusav1.JobRef{Namespace: "shop"}, Region: "eastus"}
	if !proto.Equal(f.requests[0], want) {
		t.Errorf("got %v, want %v", f.requests[0], want)
	}
	f.requests = nil
	if _, errOut, code := f.run(context.Background(), fmt.Sprintf(sample.JobFile, "a", "service"), "job", "run", "-", "-d"); code != 0 {
		t.Fatal(errOut)
	}
	if ns := f.requests[0].(*nusav1.SubmitRequest).GetSpec().GetNamespace(); ns != "shop" {
		t.Errorf("submitted to namespace %q", ns)
	}
	_, errOut, code := f.run(context.Background(), "namespace: other\n"+fmt.Sprintf(sample.JobFile, "a", "service"), "job", "run", "-", "-d")
	if code != 1 || !strings.Contains(errOut, "is other in the file and shop by --namespace") {
		t.Errorf("exit code %d, %s", code, errOut)
	}
}

// TestRegionsOwnJobIsNamedWithItsRegion: a regional server shows its own job as
// NAME@REGION.
func TestRegionsOwnJobIsNamedWithItsRegion(t *testing.T) {
	f := newFake(t)
	f.island = "eastus"
	out, errOut, code := f.run(context.Background(), fmt.Sprintf(sample.JobFile, "api", "service"), "job", "run", "-", "--addr", f.addr)
	if code != 0 || !strings.Contains(out, "default/api@eastus is running") {
		t.Errorf("exit code %d, %s%s", code, out, errOut)
	}
	if j := f.taken(); len(j) == 0 {
		t.Error("nothing was asked")
	}
}

// TestCallsThatOnlyGlobalServersKnow: a regional server that does not know a call is no server of another version.
func TestCallsThatOnlyGlobalServersKnow(t *testing.T) {
	for region, want := range map[string]string{"eastus": "is a server of region eastus, which does not know this call", "": "is it a Nusa server of this version?"} {
		f := newFake(t)
		f.island = region
		_, errOut, code := f.run(t.Context(), "", "namespace", "list", "--addr", f.addr)
		if code != 1 || !strings.Contains(errOut, want) {
			t.Errorf("region %q: exit code %d, %s", region, code, errOut)
		}
	}
}

// TestInterruptedWaitSaysThatTheJobContinues: after Ctrl-C during a wait the command prints
// that the job continues.
func TestInterruptedWaitSaysThatTheJobContinues(t *testing.T) {
	f := newFake(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	root := Root()
	root.AddCommand(Commands()...)
	out := &cancelOn{text: "pending", cancel: cancel}
	var errOut strings.Builder
	root.SetOut(out)
	root.SetErr(&errOut)
	root.SetIn(strings.NewReader(fmt.Sprintf(sample.JobFile, "stuck", "service")))
	code := ExecuteArgs(ctx, root, []string{"job", "run", "-", "--addr", f.addr})
	if code != cli.ExitWaiting || !strings.Contains(errOut.String(), "no longer waiting; default/stuck continues") {
		t.Errorf("exit code %d, %s", code, errOut.String())
	}
}

// cancelOn is a writer that calls a cancel function when it receives a text.
type cancelOn struct {
	text   string
	cancel func()
}

func (c *cancelOn) Write(p []byte) (int, error) {
	if strings.Contains(string(p), c.text) {
		c.cancel()
	}
	return len(p), nil
}

// TestLogsOfSeveralInstancesAreBounded: the logs of several instances are limited, unless a
// flag says how much to show. The logs of one instance are not limited.
func TestLogsOfSeveralInstancesAreBounded(t *testing.T) {
	f := newFake(t)
	for line, want := range map[string]int32{
		"alloc logs many": tailOfEach, "job logs many/web": tailOfEach, "job logs many -f": tailOfEach,
		"alloc logs many --tail 0": 0, "alloc logs many --tail 3": 3, "alloc logs many --bytes 9": 0, "alloc logs many/web/1": 0, "alloc logs 11112222": 0,
	} {
		f.requests = nil
		_, errOut, code := f.run(context.Background(), "", append(strings.Fields(line), "--addr", f.addr)...)
		asked := 0
		for _, r := range f.requests {
			if r, ok := r.(*nusav1.LogsRequest); ok {
				if asked++; r.GetTailLines() != want {
					t.Errorf("%s: %d lines, want %d", line, r.GetTailLines(), want)
				}
			}
		}
		if code != 0 || asked == 0 {
			t.Errorf("%s: exit code %d after %d requests, %s", line, code, asked, errOut)
		}
	}
}

// TestLogsAreOpenedAtTheSameTime: logs of several tasks are shown in order, and opened
// at the same time.
func TestLogsAreOpenedAtTheSameTime(t *testing.T) {
	f := newFake(t)
	f.readers = new(sync.WaitGroup)
	f.readers.Add(3) // a client that opens the logs one after the other never gets a response
	out, errOut, code := f.run(context.Background(), "", "job", "logs", "many", "--stdout", "--addr", f.addr)
	if want := "cache[0] one\ncache[0] two\nweb[0]   one\nweb[0]   two\nweb[1]   one\nweb[1]   two\n"; out != want || code != 0 {
		t.Errorf("exit code %d, %s\n%s", code, errOut, out)
	}
}

func TestInitDoesNotOverwrite(t *testing.T) {
	f := &fake{}
	file := filepath.Join(t.TempDir(), "a.yaml")
	for i, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"job", "init", file, "--type", "batch", "--name", "mine"}, 0, "written"},
		{[]string{"job", "validate", file}, 0, "is a valid job: default/mine, batch of 1 × main"},
		{[]string{"job", "init", file}, 1, "exists: name another file, or --force"},
		{[]string{"job", "init", file, "--force"}, 0, "written"},
		{[]string{"job", "validate", file, "-o", "json"}, 0, `"name": "my-job"`},
	} {
		out, errOut, code := f.run(context.Background(), "", c.args...)
		if code != c.code || !strings.Contains(out+errOut, c.want) {
			t.Errorf("step %d: exit code %d, %s%s", i, code, out, errOut)
		}
	}
}
