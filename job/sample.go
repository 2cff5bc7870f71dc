package job

import (
	_ "embed"
	"strings"
	"text/template"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

//go:embed sample.yaml.tmpl
var sampleText string

// Sample returns a commented job file to start from. The name must be valid.
func Sample(name string, kind nusav1.JobType) (string, error) {
	funcs := template.FuncMap{
		// pad aligns the comment after the type.
		"pad": func(s string) string { return strings.Repeat(" ", max(1, 21-len(s))) },
	}
	t, err := template.New("job").Funcs(funcs).Parse(sampleText)
	if err != nil {
		return "", err
	}
	typeName := enumName(kind.Descriptor().Values().ByNumber(kind.Number()))
	if typeName == "" {
		typeName = "service"
	}
	var b strings.Builder
	err = t.Execute(&b, struct{ Name, Type string }{name, typeName})
	return b.String(), err
}

// ParseType reads a job type in the form of job files. It returns false for another text.
func ParseType(s string) (nusav1.JobType, bool) {
	values := nusav1.JobType(0).Descriptor().Values()
	for i := range values.Len() {
		if name := enumName(values.Get(i)); name != "" && name == s {
			return nusav1.JobType(values.Get(i).Number()), true
		}
	}
	return 0, false
}
