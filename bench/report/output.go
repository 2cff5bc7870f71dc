package report

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/nusa-scheduler/nusa/job/doc"
)

// Output is the format of a printed result: table, json or yaml.
type Output string

// Check returns an error that names the flag --output if o is no known format.
func (o Output) Check() error {
	switch o {
	case "table", "json", "yaml":
		return nil
	}
	return fmt.Errorf("--output: %q is not one of table, json, yaml", string(o))
}

// Print writes a result as JSON on one line, as YAML, or as a table that the function
// table writes.
func (o Output) Print(w io.Writer, result any, table func(io.Writer) error) error {
	if o == "table" {
		return table(w)
	}
	data, err := json.Marshal(result)
	if err != nil {
		return err
	}
	data = append(data, '\n')
	if o == "yaml" {
		docs, err := doc.Read(data, true)
		if err != nil {
			return err
		}
		data = docs[0].YAML()
	}
	_, err = w.Write(data)
	return err
}
