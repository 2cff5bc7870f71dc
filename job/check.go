package job

import (
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // a host may have no time zones, or old ones

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
	"github.com/nusa-scheduler/nusa/job/times"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxFailures bounds `failures` of a health check.
const maxFailures = 100

// checkHealth validates a health check: its fields, and whether the driver can run it.
func checkHealth(c *checker, p string, t *nusav1.Task, g *nusav1.Group, kind nusav1.JobType) {
	k := t.GetCheck()
	if k == nil {
		return
	}
	if kind == nusav1.JobType_JOB_TYPE_BATCH {
		c.fail(p, "is for services: the result of a batch job is its exit code")
	}
	switch {
	case k.GetHttp() != nil:
		at := c.under(p, ".http.path")
		path := k.GetHttp().GetPath()
		switch u, err := url.Parse(path); {
		case path != "" && !strings.HasPrefix(path, "/"):
			c.fail(at, "%q does not start with /", clip(path))
		case err != nil || u.Host != "" || u.Fragment != "" || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r == 0x7f }):
			c.fail(at, "%q is not a path with an optional query", clip(path))
		}
		c.text(at, k.GetHttp().GetPath(), 1024)
		checkReachable(c, c.under(p, ".http.port"), k.GetHttp().GetPort(), t, g)
	case k.GetTcp() != nil:
		checkReachable(c, c.under(p, ".tcp.port"), k.GetTcp().GetPort(), t, g)
	case k.GetCommand() != nil:
		at := c.join(p, "command")
		words := k.GetCommand().GetCommand()
		if len(words) == 0 || words[0] == "" {
			c.fail(at, "is empty")
		}
		c.count(at, len(words), maxArgs, "arguments")
		for _, w := range words {
			c.argument(at, w, 0)
		}
		if t.GetDriver() == "incus" && t.GetConfig().GetFields()["command"].GetStringValue() == "" {
			c.fail(at, "can be run only in a container with config.command: check a port instead")
		}
	default:
		c.fail(p, "has no kind: one of http, tcp, command")
	}
	c.duration(c.join(p, "interval"), k.GetInterval(), time.Second, 24*time.Hour)
	c.duration(c.join(p, "timeout"), k.GetTimeout(), time.Millisecond, time.Hour)
	c.duration(c.join(p, "healthy_deadline"), k.GetHealthyDeadline(), time.Second, 24*time.Hour)
	if n := k.GetFailures(); n != 0 {
		c.number(c.join(p, "failures"), n, 1, maxFailures)
	}
}

// checkReachable refuses a health check of a port at which the agent cannot reach the task
// because of the network settings of the driver.
func checkReachable(c *checker, at, label string, t *nusav1.Task, g *nusav1.Group) {
	port := g.GetPorts()[label]
	if port == nil {
		c.fail(at, "the group has no port %q%s", clip(label), didYouMean(label, sorted(g.GetPorts())))
		return
	}
	config := t.GetConfig().GetFields()
	network, kind := config["network"].GetStringValue(), config["type"].GetStringValue()
	moved := port.GetTo() != 0 && port.GetTo() != port.GetStatic()
	switch {
	case t.GetDriver() == "docker" && network == "none":
		c.fail(at, "cannot be reached with config.network: none")
	case t.GetDriver() == "docker" && network == "host" && moved:
		c.fail(at, "cannot be reached at the port's to, %d, with config.network: host: leave to out and listen on $NUSA_PORT_%s", port.GetTo(), label)
	case t.GetDriver() == "incus" && kind == "virtual-machine":
		c.fail(at, "cannot be reached in a virtual machine, which has a network of its own")
	}
}

// Bounds of schedules and of what a dispatch gives to a run.
const (
	MaxPayload = 64 << 10
	// MaxMeta bounds one meta value, and MaxMetaSum all values of a dispatch with their names.
	MaxMeta, MaxMetaSum = 4 << 10, 16 << 10
	// MaxBuffer bounds the runs of a schedule that wait.
	MaxBuffer = 1000

	maxName         = 63
	maxTemplateName = 40        // the name of a run has 23 bytes more
	maxTemplateSize = 512 << 10 // a run adds its payload and variables
	maxCron         = 16
	maxExclusions   = 64
	maxMetaNames    = 32
	spareLabels     = 4 // labels and variables that a run adds
	spareEnv        = 3 + maxMetaNames
	minEvery        = 10 * time.Second
	maxEvery        = 8760 * time.Hour
	maxJitter       = 24 * time.Hour
)

// IsTemplate reports whether a job does not run itself, but begins runs: jobs of their own.
func IsTemplate(spec *nusav1.JobSpec) bool {
	return spec.GetSchedule() != nil || spec.GetParameterized() != nil || spec.GetWorkflow() != nil
}

// Brief returns what a table of jobs shows of a spec: everything except groups, regions and the steps of a
// workflow. It shares memory with the spec.
func Brief(spec *nusav1.JobSpec) *nusav1.JobSpec {
	out := &nusav1.JobSpec{
		Name: spec.GetName(), Namespace: spec.GetNamespace(), Type: spec.GetType(), Priority: spec.Priority, Labels: spec.GetLabels(),
		Schedule: spec.GetSchedule(), Parameterized: spec.GetParameterized(),
	}
	if spec.GetWorkflow() != nil {
		out.Workflow = &nusav1.Workflow{}
	}
	return out
}

// LongestName returns how many characters the name of a job may have. The names of runs are longer than
// that of their job.
func LongestName(spec *nusav1.JobSpec) int {
	if IsTemplate(spec) {
		return maxTemplateName
	}
	return maxName
}

// RunMark separates the name of a job from the id of its run. No name in a job file has it.
const RunMark = '.'

// OfStep reports whether a job is that of a step of a workflow, by its name.
func OfStep(name string) bool {
	_, id, run := strings.Cut(name, string(RunMark))
	return run && strings.Contains(id, StepMark)
}

// outputVariable names the file for the output of a step.
const outputVariable = "NUSA_OUTPUT"

// Labels of a run: the name of its job, and its time.
const (
	LabelRunOf   = "nusa-run-of"
	LabelRunTime = "nusa-run-time"
)

// ValidReference reports whether s can name a stored job: a name, or the name of a run, which is the name
// of its job, a dot and an id.
func ValidReference(s string) bool {
	name, id, run := strings.Cut(s, string(RunMark))
	if !ValidName(name) {
		return false
	}
	return !run || id != "" && ValidName("r"+id)
}

// RuleOf returns when a schedule fires. The error names the first wrong field, with its path below
// `schedule`.
func RuleOf(s *nusav1.Schedule) (*times.Rule, error) {
	r, wrong := ruleOf(s)
	if len(wrong) > 0 {
		return nil, wrong[:1]
	}
	return r, nil
}

func ruleOf(s *nusav1.Schedule) (*times.Rule, Errors) {
	var errs Errors
	fail := func(field string, err error) {
		if err != nil {
			errs = append(errs, Problem{Field: field, Message: err.Error()})
		}
	}
	r := &times.Rule{Zone: time.UTC, Every: s.GetEvery().AsDuration()}
	if name := s.GetTimeZone(); name != "" {
		zone, err := time.LoadLocation(name)
		if err != nil || name == "Local" || len(name) > 64 {
			return nil, Errors{{Field: "time_zone", Message: fmt.Sprintf("there is no time zone %q: give a name such as Europe/Berlin", clip(name))}}
		}
		r.Zone = zone
	}
	for i, text := range s.GetCron() {
		p, err := times.ParseCron(text)
		fail(fmt.Sprintf("cron[%d]", i), err)
		r.Patterns = append(r.Patterns, p)
	}
	for i, c := range s.GetCalendars() {
		p, err := times.ParseCalendar(times.DaysText{Years: c.GetYears(), Months: c.GetMonths(), Days: c.GetDays(), Weekdays: c.GetWeekdays()}, c.GetAt())
		fail(fmt.Sprintf("calendars[%d]", i), err)
		r.Patterns = append(r.Patterns, p)
	}
	first := func(field, text string) (at time.Time) {
		if text != "" {
			var err error
			at, _, err = times.ParseMoment(text, r.Zone)
			fail(field, err)
		}
		return at
	}
	last := func(field, text string) (at time.Time) { // the first time after it
		if text == "" {
			return at
		}
		at, date, err := times.ParseMoment(text, r.Zone)
		fail(field, err)
		if date {
			return times.NextDay(at, r.Zone)
		}
		return at.Add(time.Second)
	}
	r.Start, r.End = first("start", s.GetStart()), last("end", s.GetEnd())
	for i, e := range s.GetExclude() {
		field := fmt.Sprintf("exclude[%d]", i)
		x := times.Exclusion{From: first(field+".from", e.GetFrom()), Until: last(field+".to", e.GetTo())}
		if text := (times.DaysText{Years: e.GetYears(), Months: e.GetMonths(), Days: e.GetDays(), Weekdays: e.GetWeekdays()}); text != (times.DaysText{}) {
			d, err := times.ParseDays(text)
			fail(field, err)
			x.Days = &d
		} else if e.GetFrom() == "" && e.GetTo() == "" {
			fail(field, fmt.Errorf("excludes everything: give from, to, weekdays, days, months or years"))
		}
		r.Exclude = append(r.Exclude, x)
	}
	return r, errs
}

// checkTemplate validates the fields of a job that begins runs.
func checkTemplate(c *checker, spec *nusav1.JobSpec) {
	if spec.GetWorkflow() != nil || spec.GetType() == workflowType {
		checkWorkflow(c, spec)
		return
	}
	if !IsTemplate(spec) {
		return
	}
	field := "schedule"
	if spec.GetSchedule() == nil {
		field = "parameterized"
	} else if spec.GetParameterized() != nil {
		c.fail("parameterized", "not together with schedule: a schedule gives its runs no payload and no meta values")
	}
	if t := spec.GetType(); t != nusav1.JobType_JOB_TYPE_UNSPECIFIED && t != nusav1.JobType_JOB_TYPE_BATCH {
		c.fail("type", "a job with %s is a batch job: its runs end", field)
	}
	if n := len(spec.GetName()); n > maxTemplateName {
		c.fail("name", "%d characters, with %s the limit is %d: the names of its runs are longer", n, field, maxTemplateName)
	}
	if n := proto.Size(spec); n > maxTemplateSize {
		c.fail("", "the job is %d bytes, with %s the limit is %s", n, field, FormatBytes(maxTemplateSize))
	}
	c.count("labels", len(spec.GetLabels()), MaxLabels-spareLabels, "labels, besides those of runs")
	for _, name := range sorted(spec.GetGroups()) {
		for _, task := range sorted(spec.GetGroups()[name].GetTasks()) {
			t, at := spec.GetGroups()[name].GetTasks()[task], c.join(c.join(c.join("groups", name), "tasks"), task)
			c.count(c.join(at, "env"), len(t.GetEnv()), MaxEnv-spareEnv, "variables, besides those of runs")
			c.count(c.join(at, "templates"), len(t.GetTemplates()), MaxTemplates-1, "templates, besides the payload")
		}
	}
	if spec.GetSchedule() != nil {
		checkSchedule(c, "schedule", spec.GetSchedule())
	} else {
		checkParameterized(c, "parameterized", spec.GetParameterized())
	}
}

func checkSchedule(c *checker, p string, s *nusav1.Schedule) {
	if len(s.GetCron())+len(s.GetCalendars()) == 0 && s.GetEvery() == nil {
		c.fail(p, "says no time: give cron, calendars or every")
		return
	}
	before := c.wrong
	c.wrong = false
	defer func() { c.wrong = c.wrong || before }()
	c.count(c.join(p, "cron"), len(s.GetCron()), maxCron, "expressions")
	c.count(c.join(p, "calendars"), len(s.GetCalendars()), maxCron, "calendars")
	c.count(c.join(p, "exclude"), len(s.GetExclude()), maxExclusions, "exclusions")
	c.duration(c.join(p, "every"), s.GetEvery(), minEvery, maxEvery)
	if d := s.GetEvery().AsDuration(); d%time.Second != 0 {
		c.fail(c.join(p, "every"), "%s is not a whole number of seconds", FormatDuration(d))
	}
	c.duration(c.join(p, "jitter"), s.GetJitter(), 0, maxJitter)
	c.duration(c.join(p, "catch_up"), s.GetCatchUp(), time.Minute, 720*time.Hour)
	c.known(c.join(p, "overlap"), s.GetOverlap())
	if s.GetBuffer() != 0 {
		c.number(c.join(p, "buffer"), s.GetBuffer(), 1, MaxBuffer)
		if s.GetOverlap() != nusav1.Overlap_OVERLAP_BUFFER_ALL {
			c.fail(c.join(p, "buffer"), "only with overlap: buffer_all")
		}
	}
	c.number(c.join(p, "pause_after_failures"), s.GetPauseAfterFailures(), 0, maxAttempts)
	checkRunHistory(c, c.join(p, "history"), s.GetHistory())
	if c.wrong {
		return // bounds first: the search below may take long without them
	}
	r, wrong := ruleOf(s)
	for _, e := range wrong {
		c.fail(c.under(p, "."+e.Field), "%s", e.Message)
	}
	if len(wrong) == 0 {
		checkFires(c, p, s, r)
	}
}

// epoch is a time before every time of a schedule.
var epoch = time.Unix(0, 0)

// checkFires refuses a schedule, or a part of one, that never fires.
func checkFires(c *checker, p string, s *nusav1.Schedule, r *times.Rule) {
	for i := range r.Patterns {
		alone := times.Rule{Zone: r.Zone, Patterns: r.Patterns[i : i+1]}
		if _, ok := alone.Next(epoch); !ok {
			at, text := fmt.Sprintf("%s.cron[%d]", p, i), ""
			if i < len(s.GetCron()) {
				text = fmt.Sprintf("%q ", clip(s.GetCron()[i]))
			} else {
				at = fmt.Sprintf("%s.calendars[%d]", p, i-len(s.GetCron()))
			}
			c.fail(at, "%snever fires: no such date exists", text)
			return
		}
	}
	if _, ok := r.Next(epoch); !ok {
		c.fail(p, "never fires: start, end and exclude leave no time")
	}
}

func checkRunHistory(c *checker, p string, h *nusav1.RunHistory) {
	if h.GetCount() != 0 {
		c.number(c.join(p, "count"), h.GetCount(), 1, 1000)
	}
	c.duration(c.join(p, "age"), h.GetAge(), time.Minute, 8760*time.Hour)
}

var metaName = lazyregexp.New(`^[A-Za-z][A-Za-z0-9_]{0,62}$`)

func checkParameterized(c *checker, p string, s *nusav1.Parameterized) {
	c.known(c.join(p, "payload"), s.GetPayload())
	if f := s.GetPayloadFile(); f != "" {
		at := c.join(p, "payload_file")
		c.text(at, f, 255)
		switch {
		case s.GetPayload() == nusav1.Payload_PAYLOAD_FORBIDDEN:
			c.fail(at, "not together with payload: forbidden")
		case path.IsAbs(f) || path.Clean(f) != f || f == "." || f == ".." || strings.HasPrefix(f, "../"):
			c.fail(at, "%q is not a clean path below the task's folder", clip(f))
		}
	}
	seen := map[string]bool{}
	names := slices.Concat(s.GetMetaRequired(), s.GetMetaOptional())
	if len(names) > maxMetaNames {
		c.fail(c.join(p, "meta_optional"), "%d names with meta_required, the limit is %d", len(names), maxMetaNames)
		return
	}
	for i, name := range names {
		at := fmt.Sprintf("%s.meta_required[%d]", p, i)
		if n := len(s.GetMetaRequired()); i >= n {
			at = fmt.Sprintf("%s.meta_optional[%d]", p, i-n)
		}
		switch {
		case !metaName().MatchString(name):
			c.fail(at, "%q is not a name: 1 to 63 of letters, digits and _, starting with a letter", clip(name))
		case seen[name]:
			c.fail(at, "%s is given twice", name)
		}
		seen[name] = true
	}
	checkRunHistory(c, c.join(p, "history"), s.GetHistory())
}

// RunVariables returns the names of the variables that the runs of a job have in addition to Variables.
func RunVariables(spec *nusav1.JobSpec) (out []string) {
	switch {
	case spec.GetSchedule() != nil:
		return []string{"NUSA_RUN_OF", "NUSA_RUN_TIME"}
	case spec.GetParameterized() != nil:
		out = []string{"NUSA_RUN_OF", "NUSA_RUN_TIME"}
		p := spec.GetParameterized()
		if p.GetPayload() != nusav1.Payload_PAYLOAD_FORBIDDEN {
			out = append(out, "NUSA_PAYLOAD_FILE")
		}
		for _, name := range slices.Concat(p.GetMetaRequired(), p.GetMetaOptional()) {
			out = append(out, "NUSA_META_"+name)
		}
		if slices.Contains(p.GetMetaOptional(), ValueRun) { // the job of a step: see StepSpec
			out = append(out, outputVariable)
		}
	case OfStep(spec.GetName()):
		out = []string{outputVariable}
	}
	return out
}

// MaxRetryRules bounds the rules of `retry`.
const MaxRetryRules = 16

// The other limits of `retry`.
const (
	maxRetries         = 100
	maxRetryConditions = 32
	maxMemoryFactor    = 10
)

// endSignals are the signals that can end a task, by name.
var endSignals = map[string]int32{
	"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGILL": 4, "SIGTRAP": 5, "SIGABRT": 6, "SIGBUS": 7, "SIGFPE": 8, "SIGKILL": 9,
	"SIGUSR1": 10, "SIGSEGV": 11, "SIGUSR2": 12, "SIGPIPE": 13, "SIGALRM": 14, "SIGTERM": 15, "SIGXCPU": 24, "SIGXFSZ": 25, "SIGSYS": 31,
}

// EndSignal returns the number of a signal in retry.rules, or 0 if it is none of them.
func EndSignal(name string) int32 { return endSignals[name] }

// checkRetry validates the retry policy of a group.
func checkRetry(c *checker, p string, g *nusav1.Group, kind nusav1.JobType) {
	r := g.GetRetry()
	switch {
	case r == nil:
		return
	case kind != nusav1.JobType_JOB_TYPE_BATCH:
		c.fail(p, "only for batch jobs: reschedule of the group and restart of its tasks apply here")
	case g.GetReschedule() != nil:
		c.fail(p, "replaces reschedule: leave one of them out")
	}
	if r.Attempts != nil {
		c.number(c.join(p, "attempts"), r.GetAttempts(), 0, maxRetries)
	}
	c.count(c.join(p, "rules"), len(r.GetRules()), MaxRetryRules, "rules")
	for i, rule := range r.GetRules() {
		at := c.under(p, fmt.Sprintf(".rules[%d]", i))
		rule = present(rule)
		checkRetryRule(c, at, rule)
		checkRetryMemory(c, c.join(at, "memory"), rule, g)
		if i+1 < len(r.GetRules()) && len(rule.GetExitCodes())+len(rule.GetSignals())+len(rule.GetCategories()) == 0 {
			c.fail(at, "has no condition, so no later rule can match: put it last")
		}
	}
}

// checkRetryMemory validates what a rule says about memory.
func checkRetryMemory(c *checker, p string, r *nusav1.RetryRule, g *nusav1.Group) {
	m := r.GetMemory()
	if m == nil {
		return
	}
	if len(g.GetTasks()) != 1 {
		c.fail(p, "only for groups with one task: it has %d", len(g.GetTasks()))
	}
	if r.GetAction() == nusav1.RetryAction_RETRY_ACTION_FAIL {
		c.fail(p, "a rule with action fail has no memory")
		return
	}
	if n := r.GetCategories(); len(n) > 0 && !slices.Contains(n, nusav1.FailureCategory_FAILURE_CATEGORY_OOM) {
		c.fail(p, "applies to failures of the category oom, which the rule does not match")
	}
	if f := m.GetFactor(); !(f > 1 && f <= maxMemoryFactor) {
		c.fail(c.join(p, "factor"), "%v is not more than 1 and at most %d", f, maxMemoryFactor)
	}
	for _, t := range g.GetTasks() {
		if l := m.GetLimitBytes(); l != 0 && l < t.GetResources().GetMemoryBytes() {
			c.fail(c.join(p, "limit"), "%s is less than the memory of the task, %s", FormatBytes(l), FormatBytes(t.GetResources().GetMemoryBytes()))
		}
	}
}

func checkRetryRule(c *checker, p string, r *nusav1.RetryRule) {
	c.count(c.join(p, "exit_codes"), len(r.GetExitCodes()), maxRetryConditions, "exit codes")
	for i, code := range r.GetExitCodes() {
		c.number(c.under(p, fmt.Sprintf(".exit_codes[%d]", i)), code, 1, 255)
	}
	c.count(c.join(p, "signals"), len(r.GetSignals()), maxRetryConditions, "signals")
	for i, name := range r.GetSignals() {
		if EndSignal(name) == 0 {
			c.fail(c.under(p, fmt.Sprintf(".signals[%d]", i)), "%q is not one of %s", clip(name), strings.Join(slices.Sorted(maps.Keys(endSignals)), ", "))
		}
	}
	if len(r.GetExitCodes()) > 0 && len(r.GetSignals()) > 0 {
		c.fail(c.join(p, "signals"), "a task that a signal ended has no exit code: write two rules")
	}
	c.count(c.join(p, "categories"), len(r.GetCategories()), MaxRetryRules, "categories")
	if slices.Contains(r.GetCategories(), nusav1.FailureCategory_FAILURE_CATEGORY_UNSPECIFIED) {
		c.fail(c.join(p, "categories"), "a category is missing")
	}
	if r.Attempts != nil {
		c.number(c.join(p, "attempts"), r.GetAttempts(), 0, maxRetries)
	}
	if r.GetAction() == nusav1.RetryAction_RETRY_ACTION_FAIL && (r.GetBackoff() != nil || r.Attempts != nil) {
		c.fail(p, "a rule with action fail has neither attempts nor backoff")
	}
	if r.GetAction() == nusav1.RetryAction_RETRY_ACTION_FAIL && r.GetOther() != nusav1.RetryOther_RETRY_OTHER_UNSPECIFIED {
		c.fail(c.join(p, "other"), "a rule with action fail has no next attempt")
	}
	c.backoff(c.join(p, "backoff"), r.GetBackoff())
}
