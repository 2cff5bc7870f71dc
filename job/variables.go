package job

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/internal/suggest"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Variables are the names of the variables that a task has in its environment. The config,
// env, templates and artifacts of the task can refer to a variable as ${NAME}. In addition
// there is NUSA_PORT_LABEL for each port of the group, and NUSA_SECRETS_DIR for a task
// with secrets.
var Variables = [...]string{
	"NUSA_ALLOC_DIR", "NUSA_ALLOC_ID", "NUSA_ATTEMPT", "NUSA_EPOCH", "NUSA_GROUP", "NUSA_INDEX", "NUSA_JOB",
	"NUSA_NAMESPACE", "NUSA_NODE", "NUSA_REGION", "NUSA_TASK", "NUSA_TASK_DIR",
}

// checkReferences validates every reference ${NUSA_…} of a task. Agents decline a task
// that refers to an unknown variable. further are the variables that the runs of a job have besides.
func checkReferences(c *checker, p string, t *nusav1.Task, g *nusav1.Group, further []string) {
	known := append(Variables[:len(Variables):len(Variables)], further...)
	for _, label := range sorted(g.GetPorts()) {
		known = append(known[:len(known):len(known)], "NUSA_PORT_"+label)
	}
	if len(t.GetSecrets()) > 0 {
		known = append(known[:len(known):len(known)], "NUSA_SECRETS_DIR")
	}
	for _, k := range sorted(t.GetConfig().GetFields()) {
		checkValueReferences(c, join(p+".config", k), t.GetConfig().GetFields()[k], known)
	}
	for _, k := range sorted(t.GetEnv()) {
		checkTextReferences(c, join(p+".env", k), t.GetEnv()[k], known)
	}
	for i, f := range t.GetTemplates() {
		checkTextReferences(c, fmt.Sprintf("%s.templates[%d].text", p, i), f.GetText(), known)
	}
	for i, a := range t.GetArtifacts() {
		checkTextReferences(c, fmt.Sprintf("%s.artifacts[%d].source", p, i), a.GetSource(), known)
	}
}

func checkValueReferences(c *checker, p string, v *structpb.Value, known []string) {
	switch k := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		checkTextReferences(c, p, k.StringValue, known)
	case *structpb.Value_ListValue:
		for i, item := range k.ListValue.GetValues() {
			checkValueReferences(c, fmt.Sprintf("%s[%d]", p, i), item, known)
		}
	case *structpb.Value_StructValue:
		for _, key := range sorted(k.StructValue.GetFields()) {
			checkValueReferences(c, join(p, key), k.StructValue.GetFields()[key], known)
		}
	}
}

// checkTextReferences adds a problem for the first reference to an unknown variable.
func checkTextReferences(c *checker, p, s string, known []string) {
	for {
		_, rest, found := strings.Cut(s, "${NUSA_")
		if !found {
			return
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			c.fail(p, "${NUSA_%s is not closed", clip(rest))
			return
		}
		name = "NUSA_" + name
		if !slices.Contains(known, name) {
			c.fail(p, "${%s} is not a variable of a task%s", clip(name), variableHint(name, known))
			return
		}
		s = after
	}
}

// maxVariableEdits is the greatest distance of an unknown variable from a suggested one.
// It is greater than for other names, because variables have long names that begin alike.
const maxVariableEdits = 3

func variableHint(name string, known []string) string {
	if label, port := strings.CutPrefix(name, "NUSA_PORT_"); port {
		return fmt.Sprintf(": the group has no port %q", clip(label))
	}
	if best := suggest.Within(name, known, maxVariableEdits); best != "" {
		return fmt.Sprintf(", did you mean %q?", best)
	}
	return ": it has " + strings.Join(known, ", ")
}
