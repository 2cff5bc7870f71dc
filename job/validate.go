package job

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
	"github.com/nusa-scheduler/nusa/internal/suggest"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology/origin"
)

// Validate checks every limit of a spec. The defaults need not be filled in. The error is
// of type Errors. Its problems have field paths, but no lines.
func Validate(spec *nusav1.JobSpec) error { return validate(spec).err() }

// ValidateRegion checks a region definition. The error is of type Errors.
func ValidateRegion(def *nusav1.RegionDefinition) error { return validateRegion(def).err() }

// ValidName reports whether s can be the name of a job, namespace, region, group or task:
// 1 to 63 of the characters a-z, 0-9 and -, starting with a letter.
func ValidName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || i > 0 && (c >= '0' && c <= '9' || c == '-')) {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= maxName
}

var (
	label    = lazyregexp.New(`^[a-zA-Z][a-zA-Z0-9_]{0,62}$`)
	variable = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]{0,254}$`)
)

// Bounds of values. A value beyond them is a typing error, because no machine has so much.
const (
	maxCPU      = 10_000_000 // thousandths of a core
	minMemory   = 1 << 20
	maxMemory   = 64 << 40
	maxDisk     = 1 << 50
	maxGPUs     = 64
	maxDuration = 10 * 365 * 24 * time.Hour
	maxRTT      = time.Minute
	maxKill     = 24 * time.Hour
	maxText     = 256 << 10 // bytes of a template or of one setting
	maxAttempts = 1000
	maxLogSize  = 1 << 30
	minLogSize  = 4 << 10
	maxRegions  = 1000 // regions.spread
)

// maxBoundKill bounds kill_timeout of a group that a lease binds.
const maxBoundKill = 10 * time.Minute

// maxArgument bounds the bytes of one argument, and of one variable with its name. Linux starts
// no process with a longer one (MAX_ARG_STRLEN without the final zero).
const maxArgument = 128<<10 - 1

// tooLong is the problem of a variable or an argument above maxArgument.
const tooLong = "%d bytes, at most %d: Linux starts no process with more; put the text into a file with templates"

// checker collects problems. A quiet checker only finds out whether there are any. It is
// faster because it builds no paths and texts, and almost every spec has no problem.
type checker struct {
	errs  Errors
	quiet bool
	wrong bool
}

func (c *checker) join(path, key string) string {
	if c.quiet {
		return ""
	}
	return join(path, key)
}

// under appends several plain fields to a path, for example ".update.canary".
func (c *checker) under(path, fields string) string {
	if c.quiet {
		return ""
	}
	return path + fields
}

func (c *checker) fail(path, format string, args ...any) {
	c.wrong = true
	if c.quiet {
		return
	}
	c.errs = append(c.errs, Problem{Field: path, Message: fmt.Sprintf(format, args...)})
}

func (c *checker) name(path, s string) {
	switch {
	case s == "":
		c.fail(path, "is missing")
	case !ValidName(s):
		c.fail(path, "%q is not a name: 1 to 63 of a-z, 0-9 and -, starting with a letter", clip(s))
	}
}

// key validates a name that is already part of the path, so the message does not repeat
// it.
func (c *checker) key(path, s string) {
	if !ValidName(s) {
		c.fail(path, "not a name: 1 to 63 of a-z, 0-9 and -, starting with a letter")
	}
}

func between[T cmp.Ordered](c *checker, path string, v, low, high T, format func(T) string) {
	switch {
	case v < low && format(low) == "0":
		c.fail(path, "%s is negative", format(v))
	case v < low:
		c.fail(path, "%s is less than %s, the least", format(v), format(low))
	case v > high:
		c.fail(path, "%s is over the limit of %s", format(v), format(high))
	}
}

func integer[T int32 | int](v T) string { return fmt.Sprint(v) }

func (c *checker) number(path string, v, low, high int32) {
	between(c, path, v, low, high, integer[int32])
}

func (c *checker) count(path string, n, most int, what string) {
	if n > most {
		c.fail(path, "%d %s, the limit is %d", n, what, most)
	}
}

func (c *checker) duration(path string, d *durationpb.Duration, low, high time.Duration) {
	if d == nil {
		return
	}
	v, ok := goDuration(d)
	if !ok {
		c.fail(path, "is not a duration")
		return
	}
	if low == 0 && v < 0 {
		c.fail(path, "%s is negative", FormatDuration(v))
		return
	}
	between(c, path, v, low, high, FormatDuration)
}

// text validates a free text. most is its greatest length in bytes.
func (c *checker) text(path, s string, most int) {
	switch {
	case len(s) > most:
		c.fail(path, "%d bytes long, the limit is %s", len(s), FormatBytes(int64(most)))
	case !utf8.ValidString(s):
		c.fail(path, "is not UTF-8")
	case strings.ContainsRune(s, 0):
		c.fail(path, "holds a zero byte")
	}
}

func (c *checker) labels(path string, labels map[string]string) {
	c.count(path, len(labels), MaxLabels, "labels")
	for _, k := range sorted(labels) {
		p := c.join(path, k)
		if len(k) == 0 || len(k) > 63 {
			c.fail(p, "a label's key has 1 to 63 bytes")
		} else {
			c.text(p, k, 63)
		}
		c.text(p, labels[k], 253)
	}
}

// present returns m, or an empty message if m is nil. Only a program can put nil into a
// map or list.
func present[T any](m *T) *T {
	if m == nil {
		return new(T)
	}
	return m
}

func sorted[V any](m map[string]V) []string {
	if len(m) == 0 {
		return nil
	}
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func validate(spec *nusav1.JobSpec) Errors {
	c := &checker{quiet: true}
	if c.job(spec); !c.wrong {
		return nil
	}
	c = &checker{}
	c.job(spec)
	return c.errs
}

func (c *checker) job(spec *nusav1.JobSpec) {
	if n := proto.Size(spec); n > MaxSize {
		c.fail("", "the job is %d bytes, the limit is %s", n, FormatBytes(MaxSize))
		return
	}
	c.name("name", spec.GetName())
	if spec.GetNamespace() != "" {
		c.name("namespace", spec.GetNamespace())
	}
	c.known("type", spec.GetType())
	if spec.Priority != nil {
		c.number("priority", spec.GetPriority(), 0, 100)
	}
	c.labels("labels", spec.GetLabels())
	checkTemplate(c, spec)
	c.regions("regions", spec.GetRegions())
	if len(spec.GetGroups()) == 0 && spec.GetWorkflow() == nil && spec.GetType() != workflowType {
		c.fail("groups", "is missing: a job has at least one group")
	}
	c.count("groups", len(spec.GetGroups()), MaxGroups, "groups")
	for _, k := range sorted(spec.GetGroups()) {
		c.group(c.join("groups", k), k, spec.GetGroups()[k], spec)
	}
	c.updateOrder(spec)
	c.spreads(spec)
	c.colocate(spec)
}

// known refuses an enumeration value that this version does not know.
func (c *checker) known(path string, v protoreflect.Enum) {
	if v.Descriptor().Values().ByNumber(v.Number()) == nil {
		c.fail(path, "value %d is not known", v.Number())
	}
}

func (c *checker) colocate(spec *nusav1.JobSpec) {
	c.count("colocate", len(spec.GetColocate()), MaxColocations, "sets")
	for i, set := range spec.GetColocate() {
		p := fmt.Sprintf("colocate[%d]", i)
		if len(set.GetGroups()) < 2 {
			c.fail(p, "names fewer than two groups")
		}
		seen := map[string]bool{}
		for j, g := range set.GetGroups() {
			at := fmt.Sprintf("%s[%d]", p, j)
			switch _, ok := spec.GetGroups()[g]; {
			case seen[g]:
				c.fail(at, "group %q is given twice", clip(g))
			case !ok:
				c.fail(at, "there is no group %q%s", clip(g), didYouMean(g, sorted(spec.GetGroups())))
			}
			seen[g] = true
		}
		checkTogether(c, p, set.GetGroups(), spec)
	}
}

func didYouMean(s string, known []string) string {
	if near := suggest.Nearest(s, known); near != "" {
		return fmt.Sprintf(", did you mean %q?", near)
	}
	return ""
}

func (c *checker) regions(path string, r *nusav1.RegionsSpec) {
	if r == nil {
		return
	}
	c.count(c.join(path, "allow"), len(r.GetAllow()), MaxSelectors, "entries")
	for i, s := range r.GetAllow() {
		c.selector(fmt.Sprintf("%s.allow[%d]", path, i), s, "name")
	}
	c.count(c.join(path, "prefer"), len(r.GetPrefer()), MaxSelectors, "entries")
	weighted := false
	for i, p := range r.GetPrefer() {
		at := fmt.Sprintf("%s.prefer[%d]", path, i)
		c.selector(at, p.GetSelector(), "name")
		c.weight(c.join(at, "weight"), p.GetWeight())
		weighted = weighted || p.GetWeight() > 0
	}
	c.count(c.join(path, "near"), len(r.GetNear()), MaxSelectors, "entries")
	for i, n := range r.GetNear() {
		c.near(fmt.Sprintf("%s.near[%d]", path, i), n)
	}
	if s := r.GetSpread(); s != nil {
		p := c.join(path, "spread")
		c.number(c.join(p, "min"), s.GetMin(), 0, maxRegions)
		c.number(c.join(p, "max"), s.GetMax(), 0, maxRegions)
		if s.GetMax() > 0 && s.GetMin() > s.GetMax() {
			c.fail(c.join(p, "min"), "%d is more than max, %d", s.GetMin(), s.GetMax())
		}
	}
	c.known(c.join(path, "divide"), r.GetDivide())
	if r.GetDivide() == nusav1.Divide_DIVIDE_WEIGHTED && !weighted {
		c.fail(c.join(path, "divide"), "weighted needs a positive weight in prefer")
	}
}

// weight validates the weight of a preference or affinity. 0 has no effect, so the author
// probably forgot the weight.
func (c *checker) weight(path string, w int32) {
	if w == 0 {
		c.fail(path, "is missing: -100..100, not 0")
		return
	}
	c.number(path, w, -100, 100)
}

// selector validates a selector of regions. field is the key of the region's name in the
// file.
func (c *checker) selector(path string, s *nusav1.RegionSelector, field string) {
	if s.GetName() == "" && len(s.GetLabels()) == 0 {
		c.fail(path, "selects nothing: give %s or labels", field)
		return
	}
	if s.GetName() != "" {
		c.name(c.join(path, field), s.GetName())
	}
	c.labels(c.join(path, "labels"), s.GetLabels())
}

func (c *checker) near(path string, n *nusav1.Near) {
	n = present(n)
	s, ways := n.GetSelector(), 0
	for _, given := range []bool{n.Location != nil, s != nil, s.GetName() != "" && len(s.GetLabels()) > 0, n.GetDomain() != ""} {
		if given {
			ways++
		}
	}
	switch {
	case ways > 1:
		c.fail(path, "give one of region, labels, location and domain")
	case n.Location != nil:
		c.location(c.join(path, "location"), n.GetLocation())
	case n.GetDomain() != "":
		if _, err := origin.ParseDomain(n.GetDomain()); err != nil {
			c.fail(c.join(path, "domain"), "%v", err)
		}
	case s.GetName() == "" && len(s.GetLabels()) == 0:
		c.fail(path, "names no target: give region, labels, location or domain")
	default:
		c.selector(path, s, "region")
	}
	switch {
	case n.GetDataBytes() != 0 && (n.MaxRtt != nil || n.GetRequired()):
		c.fail(c.join(path, "data"), "not together with max_rtt and required: it says how much the distance counts")
	case n.GetDataBytes() != 0:
		checkData(c, c.join(path, "data"), n.GetDataBytes())
	case n.MaxRtt != nil:
		c.duration(c.join(path, "max_rtt"), n.MaxRtt, time.Microsecond, maxRTT)
	case n.GetRequired():
		c.fail(c.join(path, "max_rtt"), "is missing: required needs a bound")
	}
	if !slices.Contains([]int32{0, 50, 90, 99}, n.GetPercentile()) {
		c.fail(c.join(path, "percentile"), "%d is not one of 50, 90, 99", n.GetPercentile())
	}
	c.known(c.join(path, "unknown"), n.GetUnknown())
	if n.Weight != nil {
		c.number(c.join(path, "weight"), n.GetWeight(), 0, 100)
	}
}

func (c *checker) location(path string, l *nusav1.Location) {
	if !(l.GetLatitude() >= -90 && l.GetLatitude() <= 90) {
		c.fail(c.join(path, "latitude"), "%v is not within -90..90", l.GetLatitude())
	}
	if !(l.GetLongitude() >= -180 && l.GetLongitude() <= 180) {
		c.fail(c.join(path, "longitude"), "%v is not within -180..180", l.GetLongitude())
	}
	c.text(c.join(path, "name"), l.GetName(), 128)
}

func validateRegion(def *nusav1.RegionDefinition) Errors {
	c := &checker{}
	c.name("name", def.GetName())
	if def.GetLocation() != nil {
		c.location("location", def.GetLocation())
	}
	c.labels("labels", def.GetLabels())
	c.text("description", def.GetDescription(), 256)
	return c.errs
}
