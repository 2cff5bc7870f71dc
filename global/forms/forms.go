package forms

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"iter"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/config"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds of what a region sends.
const (
	MaxDrivers = 64
	MaxForms   = 8
	MaxBytes   = 64 << 10
)

// Task is a task whose driver is not built in.
type Task struct {
	// In is the path of the job that has it, for example "workflow.steps.fetch.", or "".
	In                  string
	Group, Name, Driver string
	Config              map[string]any
}

// Tasks returns the tasks of a job whose drivers are not built in, sorted by group and name.
func Tasks(spec *nusav1.JobSpec) (out []Task) {
	for _, group := range slices.Sorted(maps.Keys(spec.GetGroups())) {
		out = append(out, OfGroup(spec.GetGroups()[group], group)...)
	}
	return out
}

// All yields the tasks whose drivers are not built in, of a job or of the steps of a workflow and its inline ones, each
// with its job. The job of a step has only groups and regions.
func All(spec *nusav1.JobSpec) iter.Seq2[*nusav1.JobSpec, Task] {
	return func(yield func(*nusav1.JobSpec, Task) bool) {
		of := func(in *nusav1.JobSpec, path string) bool {
			for _, t := range Tasks(in) {
				t.In = path
				if !yield(in, t) {
					return false
				}
			}
			return true
		}
		if !of(spec, "") {
			return
		}
		for at, w := range job.Inside(spec) {
			steps := w.GetWorkflow().GetSteps()
			for _, name := range slices.Sorted(maps.Keys(steps)) {
				s := steps[name]
				if len(s.GetGroups()) > 0 && !of(&nusav1.JobSpec{Groups: s.GetGroups(), Regions: cmp.Or(s.GetRegions(), w.GetRegions())}, "workflow.steps."+at+name+".") {
					return
				}
			}
		}
	}
}

// Any reports whether a job, or a step of a workflow, has a task whose driver is not built in.
func Any(spec *nusav1.JobSpec) bool {
	for range All(spec) {
		return true
	}
	return false
}

// OfGroup is Tasks for one group of a job.
func OfGroup(g *nusav1.Group, name string) (out []Task) {
	for _, task := range slices.Sorted(maps.Keys(g.GetTasks())) {
		t := g.GetTasks()[task]
		if _, builtin := config.Of(t.GetDriver()); !builtin {
			out = append(out, Task{Group: name, Name: task, Driver: t.GetDriver(), Config: t.GetConfig().AsMap()})
		}
	}
	return out
}

// Path returns the path of the task's config in the job.
func (t *Task) Path() string { return t.In + "groups." + t.Group + ".tasks." + t.Name + ".config" }

// Book holds the forms of all regions. The zero value is empty. It is not safe for concurrent use.
type Book struct {
	regions map[string]*region
	version uint64
}

type region struct {
	hash    uint64
	drivers map[string]*driver
	// cut: the region has more drivers, about which nothing is known. Regions of an earlier version of Nusa do not
	// say it, so a full list counts as cut.
	cut bool
}

// driver says what the nodes of a region accept: any config, or those of one of the forms.
type driver struct {
	forms []*form
	any   bool
}

// form is a schema. Regions with the same form share it.
type form struct {
	digest [sha256.Size]byte
	schema config.Schema
}

// encoded returns a deterministic encoding. Messages of this kind can always be encoded.
func encoded(m proto.Message) []byte {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil
	}
	return raw
}

// Set stores the forms that a region sent. It reports whether they differ from those before. Of forms beyond
// the bounds, it stores that the nodes accept any config.
func (b *Book) Set(name string, m *nusav1.DriverForms) (changed bool) {
	hash := job.FormsHash(m)
	if old := b.regions[name]; old != nil && old.hash == hash {
		return false
	}
	next, size := &region{hash: hash, drivers: map[string]*driver{}, cut: m.GetTruncated() || len(m.GetDrivers()) >= MaxDrivers}, 0
	for _, d := range m.GetDrivers()[:min(len(m.GetDrivers()), MaxDrivers)] {
		to := &driver{any: d.GetAny() || len(d.GetForms()) > MaxForms || len(d.GetForms()) == 0}
		if size += proto.Size(d); size > MaxBytes {
			to.any = true
		}
		for _, s := range d.GetForms() {
			if to.any {
				break
			}
			f := b.share(s)
			to.any = f == nil
			to.forms = append(to.forms, f)
		}
		if to.any {
			to.forms = nil
		}
		next.drivers[d.GetDriver()] = to
	}
	if b.regions == nil {
		b.regions = map[string]*region{}
	}
	b.regions[name] = next
	b.version++
	return true
}

// share returns a form that a region has already, or a new one. It returns nil if the form breaks its bounds.
func (b *Book) share(s *nusav1.ConfigSchema) *form {
	digest := sha256.Sum256(encoded(s))
	for _, r := range b.regions {
		for _, d := range r.drivers {
			for _, f := range d.forms {
				if bytes.Equal(f.digest[:], digest[:]) {
					return f
				}
			}
		}
	}
	schema := job.ConfigSchemaFromProto(s)
	if config.CheckSchema(schema) != nil {
		return nil
	}
	return &form{digest: digest, schema: schema}
}

// Remove forgets a region.
func (b *Book) Remove(name string) {
	if b.regions[name] != nil {
		delete(b.regions, name)
		b.version++
	}
}

// Version grows with each change.
func (b *Book) Version() uint64 { return b.version }

// Hash returns job.FormsHash of a region's forms, or 0 if the region has sent none.
func (b *Book) Hash(name string) uint64 {
	if r := b.regions[name]; r != nil {
		return r.hash
	}
	return 0
}

// Known reports whether a region has sent its forms.
func (b *Book) Known(name string) bool { return b.regions[name] != nil }

// Kind is what the nodes of some regions accept for a driver: a config that matches one of some forms.
type Kind struct {
	// Region is the first of these regions, and N their number.
	Region string
	N      int
	driver *driver
}

// Refuses returns the problems of a task's config if each node of these regions that has the driver refuses it. They are
// those of the first form.
func (k Kind) Refuses(t *Task) job.Errors { return k.driver.refuses(t, map[*form]bool{}) }

// Kinds groups regions that have sent their forms by what they accept for a driver, in the order of the regions. any: a
// node of one of them may accept any config. Regions that do not have the driver are left out.
func (b *Book) Kinds(driver string, regions []string) (kinds []Kind, any bool) {
	at := map[[MaxForms]*form]int{}
	for _, name := range regions {
		switch r := b.regions[name]; {
		case r == nil || r.drivers[driver] == nil && !r.cut:
		case r.drivers[driver] == nil || r.drivers[driver].any:
			return nil, true
		default:
			var key [MaxForms]*form // regions share equal forms
			copy(key[:], r.drivers[driver].forms)
			i, known := at[key]
			if !known {
				i, at[key] = len(kinds), len(kinds)
				kinds = append(kinds, Kind{Region: name, driver: r.drivers[driver]})
			}
			kinds[i].N++
		}
	}
	return kinds, false
}

// refuses returns the problems of a task's config if no form of the driver accepts it. accepted has the forms that were asked about the task already.
func (d *driver) refuses(t *Task, accepted map[*form]bool) (out job.Errors) {
	accepts := func(f *form) bool {
		is, known := accepted[f]
		if !known {
			is = f.schema.Error(t.Config, config.Submitted) == nil
			accepted[f] = is
		}
		return is
	}
	if d == nil || d.any || slices.ContainsFunc(d.forms, accepts) {
		return nil
	}
	d.forms[0].schema.Check(t.Config, config.Submitted, func(at, text string) {
		out = append(out, job.Problem{Field: t.Path() + at, Message: text, Reason: nusav1.Reason_REASON_CONFIG_INVALID})
	})
	return out
}

// Refusals returns the regions that refuse the config of some of the tasks, with the reason. It asks each form once,
// however many regions have it.
func (b *Book) Refusals(tasks []Task) (out map[string]string) {
	for i := range tasks {
		t, accepted := &tasks[i], map[*form]bool{}
		for name, r := range b.regions {
			problems := r.drivers[t.Driver].refuses(t, accepted)
			if len(problems) == 0 || out[name] != "" {
				continue
			}
			if out == nil {
				out = map[string]string{}
			}
			out[name] = text(t, problems)
		}
	}
	return out
}

// text returns the first of the problems in one line, for a region that gets no instance because of them.
func text(t *Task, problems job.Errors) string {
	return fmt.Sprintf("driver %s of its nodes does not accept %s: %s", t.Driver, problems[0].Field, problems[0].Message)
}
