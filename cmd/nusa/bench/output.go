package bench

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/job/doc"
)

// output is how a result is printed: as table, json or yaml.
type output string

func (o *output) bind(cmd *cobra.Command) {
	cmd.Flags().StringVarP((*string)(o), "output", "o", "table", "table, json or yaml")
}

func (o output) check() error {
	switch o {
	case "table", "json", "yaml":
		return nil
	}
	return fmt.Errorf("--output: %q is not one of table, json, yaml", string(o))
}

// print writes a result, JSON on one line; table draws it for people.
func (o output) print(w io.Writer, result any, table func(io.Writer) error) error {
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
