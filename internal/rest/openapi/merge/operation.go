package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/rest"
)

var (
	inBraces = regexp.MustCompile(`\{([^}]+)\}`)
	sentence = regexp.MustCompile(`^([^.]|\.[a-z0-9])*\.`)
)

// finishOperation completes an operation.
func finishOperation(item object, op rest.Operation) {
	id := strings.ReplaceAll(op.Name, ".", "_")
	if slices.ContainsFunc(rest.Operations(), func(o rest.Operation) bool { return o.Name == op.Name && o.Path+" "+o.Verb < op.Path+" "+op.Verb }) {
		id += "_" + strings.ToLower(op.Verb)
	}
	item["operationId"] = id
	describe(item, op)
	item["parameters"] = parameters(item, op)
	requestBody(item, op)
	item["responses"] = responsesOf(item, op)
	if op.Name == "Auth.Login" || op.Name == "Auth.ListProviders" {
		item["security"] = []any{}
	}
}

// describe splits the comment of an RPC into a summary and a description.
func describe(item object, op rest.Operation) {
	summary, _ := item["summary"].(string)
	more, _ := item["description"].(string)
	text := strings.TrimSpace(summary + "\n\n" + more)
	first := strings.TrimSuffix(strings.ReplaceAll(sentence.FindString(text), "\n", " "), ".")
	if first == "" {
		first = op.Name
	}
	item["summary"] = first
	switch {
	case op.Name == "Allocations.Exec":
		text += "\n\n" + execText
	case op.Duplex:
		text += "\n\n" + linesText
	case op.Streams:
		text += "\n\n" + streamText
	}
	item["description"] = text
}

// parameters returns the parameters of an operation.
func parameters(item object, op rest.Operation) []any {
	inPath := map[string]bool{}
	for _, m := range inBraces.FindAllStringSubmatch(op.Path, -1) {
		inPath[m[1]] = true
	}
	out := []any{}
	given, _ := item["parameters"].([]any)
	for _, p := range given {
		p := p.(object)
		name := p["name"].(string)
		switch {
		case p["in"] == "path":
			p["name"] = name[strings.LastIndex(name, ".")+1:]
		case inPath[name] || strings.HasPrefix(name, "spec."):
			continue
		}
		if schema := at(p, "schema"); schema != nil {
			finishSchema(schema)
		}
		out = append(out, p)
	}
	if op.Idempotent {
		out = append(out, header("Idempotency-Key", "A retry with the same key, of at most 128 bytes, gets the same response."))
	}
	if op.Revision != "" {
		out = append(out, header("If-Match", "The ETag of an earlier response. 412 if the object has changed since then."))
		out = append(out, header("If-None-Match", "Only *: 412 if the object exists."))
	}
	if op.Token != "" {
		out = append(out, header("Last-Event-ID", "The id of the last event of an earlier stream, which this stream continues."))
	}
	return out
}

func header(name, description string) object {
	return object{"name": name, "in": "header", "description": description, "schema": object{"type": "string"}}
}

// requestBody completes the body of a request.
func requestBody(item object, op rest.Operation) {
	body := at(item, "requestBody")
	if body == nil {
		return
	}
	content := at(body, "content")
	schema := at(content, "application/json", "schema")
	finishSchema(schema)
	if schema["$ref"] == nil && schema["properties"] != nil {
		schema["additionalProperties"] = false
	}
	body["required"] = op.Body != "*"
	switch {
	case op.Duplex:
		body["required"] = true
		body["content"] = object{"application/x-ndjson": object{"schema": schema}}
	case op.TakesJob:
		content["application/json"] = object{"schema": object{"anyOf": []any{schema, ref("JobFile")}}}
		content["application/yaml"] = object{"schema": ref("JobFile")}
	}
}

// responsesOf returns the responses of an operation.
func responsesOf(item object, op rest.Operation) object {
	ok := at(item, "responses", "200")
	schema := at(ok, "content", "application/json", "schema")
	finishSchema(schema)
	if op.Streams {
		ok["content"] = object{
			"application/x-ndjson": object{"schema": object{"anyOf": []any{schema, ref("ErrorFrame")}}},
			"text/event-stream":    object{"schema": object{"type": "string"}},
		}
		if op.Duplex {
			delete(at(ok, "content"), "text/event-stream")
		}
	}
	if op.GivesJob {
		at(ok, "content")["application/yaml"] = object{"schema": object{"type": "string", "description": "The spec as a job file, with what is not a default."}}
	}
	out := object{"200": ok, "default": object{"$ref": "#/components/responses/Problem"}}
	for _, code := range []string{"400", "403", "404", "409"} {
		out[code] = object{"$ref": "#/components/responses/Problem"}
	}
	out["401"] = object{"$ref": "#/components/responses/Unauthenticated"}
	out["429"] = object{"$ref": "#/components/responses/Later"}
	out["503"] = object{"$ref": "#/components/responses/Later"}
	if op.Revision != "" {
		out["412"] = object{"$ref": "#/components/responses/Problem"}
	}
	if op.Body != "" {
		out["413"] = object{"$ref": "#/components/responses/Problem"}
		out["415"] = object{"$ref": "#/components/responses/Problem"}
	}
	headers := object{}
	if slices.Contains(op.ResponseFields, "revision") && !op.Streams {
		headers["ETag"] = object{"description": "The revision, for If-Match.", "schema": object{"type": "string"}}
	}
	if slices.Contains(op.ResponseFields, "next_page_token") || slices.Contains(op.ResponseFields, "next_page") {
		headers["Link"] = object{"description": "The address of the next page, with rel=\"next\".", "schema": object{"type": "string"}}
	}
	if len(headers) > 0 {
		ok["headers"] = headers
	}
	return out
}

func ref(schema string) object { return object{"$ref": "#/components/schemas/" + schema} }
