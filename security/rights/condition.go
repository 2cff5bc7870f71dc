package rights

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/nusa-scheduler/nusa/internal/expr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/authz"
)

// maxConditions bounds the rules with conditions of a set.
const maxConditions = 256

// compiled are compiled conditions. Each change makes a new Set, mostly with the same conditions.
var compiled conditionCache

type conditionCache struct {
	mu  sync.Mutex
	all map[string]compiledCondition
}

type compiledCondition struct {
	condition *expr.Condition
	err       error
}

// get compiles a condition, or returns the earlier result.
func (c *conditionCache) get(source string) (*expr.Condition, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.all[source]
	if !ok {
		found.condition, found.err = expr.CompileCondition(source)
		if c.all == nil || len(c.all) >= 4*maxConditions {
			c.all = map[string]compiledCondition{}
		}
		c.all[source] = found
	}
	return found.condition, found.err
}

// holds returns the function that evaluates a condition, or nil for no condition. It is compiled when
// it is evaluated first.
func holds(source string) func(authz.Action) (bool, error) {
	if source == "" {
		return nil
	}
	condition := sync.OnceValues(func() (*expr.Condition, error) { return compiled.get(source) })
	return func(a authz.Action) (bool, error) {
		c, err := condition()
		if err != nil {
			return false, err
		}
		if err := checkOpen(c, a); err != nil {
			return false, err
		}
		request := &expr.Request{Principal: a.By, Verb: a.Verb, Kind: a.Kind, Namespace: oneOf(a.Namespace), Region: oneOf(a.Region), Name: a.Name}
		var job *expr.Job
		if asked, ok := a.Request.(*Submission); ok && c.ReadsJob {
			job, err = asked.job()
			if err != nil {
				return false, err
			}
		}
		ok, err := c.Holds(request, job)
		if errors.Is(err, expr.ErrNoJob) {
			err = authz.ErrDepends
		}
		return ok, err
	}
}

// checkOpen returns an error if a condition reads what an action leaves open: an action on all
// namespaces also is one on the namespace that the condition is about.
func checkOpen(c *expr.Condition, a authz.Action) error {
	switch {
	case a.Namespace == authz.Any && c.ReadsRequest("namespace"):
		return errors.New("the call is about all namespaces")
	case a.Region == authz.Any && c.ReadsRequest("region"):
		return errors.New("the call is about all regions, or about a job of the federation")
	case a.Name == "" && c.ReadsRequest("name"):
		return errors.New("the call names no object")
	}
	return nil
}

// oneOf returns the name of a place, or nothing for every place.
func oneOf(place string) string {
	if place == authz.Any {
		return ""
	}
	return place
}

// checkConditions compiles the conditions of a role. Only rules for submits and plans of jobs may
// read the job, because other requests have none.
func checkConditions(role *nusav1.AuthRole) error {
	for i, rule := range role.GetRules() {
		if rule.GetCondition() == "" {
			continue
		}
		c, err := compiled.get(rule.GetCondition())
		if err != nil {
			return fmt.Errorf("rule %d, condition: %w", i+1, err)
		}
		other := func(verb string) bool { return verb != "submit" && verb != "plan" }
		if c.ReadsJob && (slices.ContainsFunc(rule.GetVerbs(), other) || !slices.Equal(rule.GetKinds(), []string{"job"})) {
			return fmt.Errorf("rule %d: the condition reads the job, so the rule may only be for the verbs submit and plan of the kind job: make a rule of its own", i+1)
		}
	}
	return nil
}

func hasCondition(role *nusav1.AuthRole) bool {
	return slices.ContainsFunc(role.GetRules(), func(r *nusav1.AuthRule) bool { return r.GetCondition() != "" })
}

func countConditions(msg *nusav1.AuthSet) (n int) {
	for _, role := range msg.GetConditionalRoles() {
		for _, rule := range role.GetRules() {
			if rule.GetCondition() != "" {
				n++
			}
		}
	}
	return n
}
