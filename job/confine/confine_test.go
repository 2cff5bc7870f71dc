package confine_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/confine"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const page = `
name: web
namespace: pay
regions: {allow: [{name: eu}, {name: us}]}
groups:
  web:
    pool: gpu
    volumes: {data: {source: /srv/data}}
    tasks:
      a: {driver: process, config: {command: /bin/true}}
      b: {driver: process, config: {command: /bin/true, user: "0:100"}}
      c: {driver: process, config: {command: /bin/true, user: nobody}}
      d: {driver: docker, config: {image: x, privileged: true}}
      e: {driver: docker, config: {image: x, privileged: false, user: root}}
      f: {driver: incus, config: {image: x, command: /x, config: {security.privileged: true}}}
      g: {driver: incus, config: {image: x, command: /x, config: {security.privileged: false}, profiles: [default]}}
      h: {driver: incus, config: {image: x, command: /x, profiles: [default, gpu]}}
      i: {driver: incus, config: {image: x, command: /x, devices: {d: {type: disk, path: /x, source: /}}}}
`

// TestConfine: each limit of a namespace refuses what is beyond it, by the words of the node, and
// nothing else.
func TestConfine(t *testing.T) {
	spec, err := job.Parse([]byte(page), "web.yaml")
	if err != nil {
		t.Fatal(err)
	}
	job.Default(spec)
	nothing := &nusav1.JobSpec{Name: "x", Groups: map[string]*nusav1.Group{"g": {}}}
	job.Default(nothing)
	task := func(name, rest string) string { return "groups.web.tasks." + name + "." + rest }
	for name, c := range map[string]struct {
		limits *nusav1.Namespace
		spec   *nusav1.JobSpec
		region string
		want   []string
	}{
		"no limits":             {limits: &nusav1.Namespace{}},
		"what the job asks for": {limits: &nusav1.Namespace{Drivers: []string{"process", "docker", "inc*"}, Pools: []string{"gpu"}, Regions: []string{"eu", "u?"}}},
		"drivers":               {limits: &nusav1.Namespace{Drivers: []string{"incus", "p*"}}, want: []string{task("d", "driver: its jobs may not use the driver docker (--drivers incus,p*)"), task("e", "driver: ")}},
		"pools":                 {limits: &nusav1.Namespace{Pools: []string{"cpu*"}}, want: []string{"groups.web.pool: its jobs may not use the pool gpu (--pools cpu*)"}},
		"regions":               {limits: &nusav1.Namespace{Regions: []string{"eu"}}, want: []string{"regions.allow[1].name: its jobs may not run in region us (--regions eu)"}},
		"no region is named":    {limits: &nusav1.Namespace{Regions: []string{"eu"}}, spec: nothing, want: []string{"regions.allow: name the regions"}},
		"all regions":           {limits: &nusav1.Namespace{Regions: []string{"*"}}, spec: nothing},
		"a region's own job":    {limits: &nusav1.Namespace{Regions: []string{"eu"}}, spec: nothing, region: "us", want: []string{"its jobs may not run in region us"}},
		"another's own job":     {limits: &nusav1.Namespace{Regions: []string{"eu"}}, spec: nothing, region: "eu"},
		"root": {limits: &nusav1.Namespace{ForbidRoot: true}, want: []string{
			task("a", "config.user: jobs may not run as root: name another user"), task("b", "config.user: jobs may not run as 0:100 (--forbid root)")}},
		"volumes": {limits: &nusav1.Namespace{ForbidHostVolumes: true}, want: []string{"groups.web.volumes.data.source: its jobs may use no folder of the host (--forbid host-volumes)"}},
		"privileged": {limits: &nusav1.Namespace{ForbidPrivileged: true}, want: []string{
			task("d", "config.privileged: "), task("f", `config.config["security.privileged"]: it is not known to be harmless with this value`),
			task("h", "config.profiles[1]: the profile gpu"), task("i", `config.devices["d"]: a disk other than the root disk`)}},
	} {
		of := spec
		if c.spec != nil {
			of = c.spec
		}
		c.limits.Name = "pay"
		got := confine.Confine(of, c.limits, c.region)
		same := len(got) == len(c.want)
		for i := range min(len(got), len(c.want)) {
			text := strings.Replace(got[i].Error(), "not allowed in namespace pay: ", "", 1)
			same = same && strings.HasPrefix(text, c.want[i]) && got[i].Reason == nusav1.Reason_REASON_NOT_ALLOWED && text != got[i].Error()
		}
		if !same {
			t.Errorf("%s: %v, want %q", name, got, c.want)
		}
	}
}

// TestRootUsers: root has several names.
func TestRootUsers(t *testing.T) {
	for user, root := range map[string]bool{"root": true, "0": true, "00": true, "+0": true, "root:users": true, "0:0": true, ":0": true, "1000": false, "nobody": false, "100": false, "rooty": false,
		"${NUSA_INDEX}": true, "${NUSA_JOB}:users": true} {
		spec, err := job.Parse([]byte("name: x\ngroups: {g: {tasks: {t: {driver: process, config: {command: /x, user: \""+user+"\"}}}}}\n"), "x.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if got := len(confine.Confine(spec, &nusav1.Namespace{ForbidRoot: true}, "")) > 0; got != root {
			t.Errorf("user %q: refused %t, want %t", user, got, root)
		}
	}
}

// TestValidate: a namespace has a name, patterns, and bounded lists.
func TestValidate(t *testing.T) {
	good := &nusav1.Namespace{Name: "pay", Description: "payments", Drivers: []string{"docker"}, Pools: []string{"gpu*"}, Regions: []string{"*"}}
	if err := confine.Validate(good); err != nil {
		t.Error(err)
	}
	for want, bad := range map[string]*nusav1.Namespace{
		`name: "" is not a name`: {}, `name: "A" is not a name`: {Name: "A"}, "description": {Name: "a", Description: strings.Repeat("x", 257)},
		"drivers[0]": {Name: "a", Drivers: []string{""}}, "regions: 65 entries": {Name: "a", Regions: slices.Repeat([]string{"x"}, 65)},
	} {
		if err := confine.Validate(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
