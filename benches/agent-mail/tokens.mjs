#!/usr/bin/env node
// Reads a JSON list of texts and prints the number of tokens of each, with the vocabulary o200k_base that the package carries.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const load = createRequire(`${process.env.AGENT_MAIL_NODE}/package.json`);
const { countTokens } = load("gpt-tokenizer/encoding/o200k_base");
console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map((text) => countTokens(text))));
