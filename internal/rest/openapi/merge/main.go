package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/rest"
)

// object is an object of JSON.
type object = map[string]any

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "merge:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("name the folder with the parts, and the file for the document")
	}
	doc, err := read(args[0])
	if err != nil {
		return err
	}
	if err := finish(doc); err != nil {
		return err
	}
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	out.SetEscapeHTML(false)
	out.SetIndent("", " ")
	if err := out.Encode(doc); err != nil {
		return err
	}
	return os.WriteFile(args[1], text.Bytes(), 0o644)
}

// read merges the parts in a folder.
func read(folder string) (object, error) {
	paths, schemas, tags := object{}, object{}, []any{}
	var files []string
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".openapi.json") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var part object
		if err := json.Unmarshal(text, &part); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for path, item := range at(part, "paths") {
			paths[path] = item
		}
		for name, schema := range at(part, "components", "schemas") {
			schemas[name] = schema
		}
		if list, ok := part["tags"].([]any); ok {
			tags = append(tags, list...)
		}
	}
	return object{
		"openapi": "3.1.0", "info": info, "tags": tags, "paths": paths,
		"components": object{"schemas": schemas, "responses": responses, "securitySchemes": securitySchemes},
		"security":   []any{object{"token": []any{}}, object{"certificate": []any{}}},
	}, nil
}

// at returns the object at a path, or nil.
func at(o object, path ...string) object {
	for _, name := range path {
		o, _ = o[name].(object)
	}
	return o
}

// finish changes a document of merged parts into that of the API.
func finish(doc object) error {
	schemas := at(doc, "components", "schemas")
	delete(schemas, "google.rpc.Status")
	for name, schema := range schemas {
		finishSchema(schema.(object))
		if properties := at(schema.(object), "properties"); properties != nil && at(schemas, name)["additionalProperties"] == nil {
			schema.(object)["additionalProperties"] = false
		}
	}
	for name, schema := range commonSchemas {
		schemas[name] = schema
	}
	given, paths := at(doc, "paths"), object{}
	for _, op := range rest.Operations() {
		item := at(given, op.Path, strings.ToLower(op.Verb))
		if item == nil {
			return fmt.Errorf("no part has %s %s", op.Verb, op.Path)
		}
		finishOperation(item, op)
		if paths[op.Template] == nil {
			paths[op.Template] = object{}
		}
		at(paths, op.Template)[strings.ToLower(op.Verb)] = item
	}
	doc["paths"] = paths
	addVirtflow(doc)
	prune(doc)
	return nil
}

// prune removes the schemas that nothing refers to.
func prune(doc object) {
	schemas := at(doc, "components", "schemas")
	used := map[string]bool{}
	var visit func(v any)
	visit = func(v any) {
		switch v := v.(type) {
		case object:
			for key, value := range v {
				name, ok := value.(string)
				name, local := strings.CutPrefix(name, "#/components/schemas/")
				if key == "$ref" && ok && local && !used[name] {
					used[name] = true
					visit(schemas[name])
				}
				visit(value)
			}
		case []any:
			for _, one := range v {
				visit(one)
			}
		}
	}
	visit(doc["paths"])
	visit(at(doc, "components", "responses"))
	for name := range schemas {
		if !used[name] {
			delete(schemas, name)
		}
	}
}
